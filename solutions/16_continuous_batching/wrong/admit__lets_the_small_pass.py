# expect: was overtaken
# fails: rules, trace
def admit(waiting: list[tuple[str, int, int]], room: Room) -> list[str]:
    """The names that join this step, from the front of the line."""
    joined, blocks, prompts = [], 0, 0
    for name, prompt, answer in waiting:
        blocks += -(-(prompt + answer) // BLOCK)
        prompts += prompt
        if len(joined) == room.seats or blocks > room.blocks or (joined and prompts > room.budget):
            blocks -= -(-(prompt + answer) // BLOCK)
            prompts -= prompt
            continue
        joined.append(name)
    return joined
