# expect: was overtaken
# fails: rules, trace
def admit(waiting: list[tuple[str, int, int]], room: Room) -> list[str]:
    """The names that join this step, from the front of the queue."""
    joined, blocks, prompts = [], 0, 0
    for name, prompt, answer in waiting:
        need = -(-(prompt + answer) // BLOCK)
        if len(joined) == room.seats or blocks + need > room.blocks:
            break
        if joined and prompts + prompt > room.budget:
            continue
        joined.append(name)
        blocks += need
        prompts += prompt
    return joined
