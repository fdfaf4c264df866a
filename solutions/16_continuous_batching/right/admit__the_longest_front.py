def admit(waiting: list[tuple[str, int, int]], room: Room) -> list[str]:
    """The names that join this step, from the front of the line."""
    for n in range(min(len(waiting), room.seats), 0, -1):
        front = waiting[:n]
        fits = sum(math.ceil((prompt + answer) / BLOCK) for _, prompt, answer in front) <= room.blocks
        if fits and (n == 1 or sum(prompt for _, prompt, _ in front) <= room.budget):
            return [name for name, _, _ in front]
    return []
