class Server:
    """The first request that waits leads the batch and calls the model itself; if it leaves, another one leads."""

    def __init__(self, model, max_batch, max_delay):
        self.model, self.max_batch, self.max_delay = model, max_batch, max_delay
        self.waiting, self.seconds, self.changed, self.lead = [], [], asyncio.Condition(), asyncio.Lock()

    async def handle(self, prompt):
        request = {"prompt": prompt, "began": now(), "future": asyncio.get_running_loop().create_future()}
        self.waiting.append(request)
        await self.tell()
        request["leader"] = asyncio.create_task(self.leads(request))
        try:
            answer = await request["future"]
        except asyncio.CancelledError:
            if request in self.waiting:
                self.waiting.remove(request)
            raise
        self.seconds.append(now() - request["began"])
        return answer

    async def tell(self):
        async with self.changed:
            self.changed.notify_all()

    async def leads(self, request):
        async with self.lead:
            while request in self.waiting and self.waiting[0] is request:
                left = request["began"] + self.max_delay - now()
                if len(self.waiting) >= self.max_batch or left <= 0:
                    break
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left), self.changed:
                        await self.changed.wait()
            if request not in self.waiting:
                return
            batch, self.waiting = self.waiting[: self.max_batch], self.waiting[self.max_batch :]
            try:
                answers = await asyncio.to_thread(self.model, [each["prompt"] for each in batch])
            except Exception as error:
                for each in batch:
                    if not each["future"].done():
                        each["future"].set_exception(error)
                return
            for each, answer in zip(batch, answers, strict=True):
                if not each["future"].done():
                    each["future"].set_result(answer)

    def report(self):
        rank = 0.95 * (len(self.seconds) - 1)
        s, low = sorted(self.seconds), int(0.95 * (len(self.seconds) - 1))
        high = min(low + 1, len(s) - 1)
        return s[low] + (s[high] - s[low]) * (rank - low)
