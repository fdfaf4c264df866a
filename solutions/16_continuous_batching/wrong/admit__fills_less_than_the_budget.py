# expect: although it would fit
# fails: rules
def admit(waiting: list[tuple[str, int, int]], room: Room) -> list[str]:
    """The names that join this step, from the front of the line."""
    joined, blocks, prompts = [], 0, 0
    for name, prompt, answer in waiting:
        blocks += -(-(prompt + answer) // BLOCK)
        prompts += prompt
        if len(joined) == room.seats or blocks > room.blocks or (joined and prompts >= room.budget):
            break
        joined.append(name)
    return joined
