def admit(waiting: list[tuple[str, int, int]], room: Room) -> list[str]:
    """The names that join this step, from the front of the queue."""
    blocks = np.cumsum([-(-(prompt + answer) // BLOCK) for _, prompt, answer in waiting])
    prompts = np.cumsum([prompt for _, prompt, _ in waiting])
    place = np.arange(len(waiting))
    fits = (place < room.seats) & (blocks <= room.blocks) & ((prompts <= room.budget) | (place == 0))
    return np.array([name for name, _, _ in waiting])[: int(np.logical_and.accumulate(fits).sum())]
