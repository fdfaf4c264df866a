def admit(waiting: list[tuple[str, int, int]], room: Room) -> list[str]:
    """The names that join this step, from the front of the line."""
    if not waiting:
        return []
    prompts = np.cumsum([prompt for _, prompt, _ in waiting])
    blocks = np.cumsum([-(-(prompt + answer) // BLOCK) for _, prompt, answer in waiting])
    count = min(room.seats, int((blocks <= room.blocks).sum()), max(1, int((prompts <= room.budget).sum())))
    return [name for name, _, _ in waiting[:count]]
