def choose_limits(workload: Workload) -> tuple[int, int]:
    """Seats, and tokens per step."""

    def share(seats, budget):
        made = arrivals(workload.rate, workload.requests // 2, workload.prompts, workload.outputs, 77)

        def decide(waiting, running):
            while waiting and len(running) < seats:
                running.append(waiting.pop(0))
            left, chunks = budget, []
            for request in sorted(running, key=lambda r: r.length - r.computed > 1):
                count = min(left, request.length - request.computed)
                left -= count
                if count:
                    chunks.append((request, count))
            return chunks

        good = 0
        for request in serve(made, decide, keys_cost=True):
            worst = max(b - a for a, b in zip(request.times, request.times[1:], strict=False))
            good += worst <= workload.gap and request.times[0] - request.arrival <= workload.ttft
        return good

    options = [(seats, budget) for seats in (12, 200) for budget in (400, 900)]
    return max(options, key=lambda option: share(*option))
