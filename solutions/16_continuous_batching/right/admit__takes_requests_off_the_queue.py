def admit(waiting: list[tuple[str, int, int]], room: Room) -> list[str]:
    """The names that join this step, from the front of the queue."""
    joined, seats, blocks, budget = [], room.seats, room.blocks, room.budget
    while waiting:
        name, prompt, answer = waiting.pop(0)
        seats -= 1
        blocks -= math.ceil((prompt + answer) / BLOCK)
        budget -= prompt
        if seats < 0 or blocks < 0 or (budget < 0 and joined):
            return joined
        joined.append(name)
    return joined
