def admit(waiting: list[tuple[str, int, int]], room: Room) -> list[str]:
    """The names that join this step, from the front of the line."""
    if not waiting or room.seats < 1:
        return []
    name, prompt, answer = waiting[0]
    blocks = (prompt + answer + BLOCK - 1) // BLOCK
    if blocks > room.blocks:
        return []
    left = room.budget - prompt
    rest = waiting[1:]
    if not rest or rest[0][1] > left:
        return [name]
    return [name] + admit(rest, Room(room.seats - 1, room.blocks - blocks, left))
