# expect: blocks for prompts and answers, of which
# fails: rules, trace
def admit(waiting: list[tuple[str, int, int]], room: Room) -> list[str]:
    """The names that join this step, from the front of the line."""
    joined, blocks, prompts = [], 0, 0
    for name, prompt, _ in waiting:
        blocks += -(-prompt // BLOCK)
        prompts += prompt
        if len(joined) == room.seats or blocks > room.blocks or (joined and prompts > room.budget):
            break
        joined.append(name)
    return joined
