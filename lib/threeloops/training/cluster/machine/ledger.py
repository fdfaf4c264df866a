"""The unfinished operations of a run's ranks, and the explanation if they will never finish."""

from collections import defaultdict
from collections.abc import Container, Iterator, Sequence

from threeloops.training.cluster.machine.calls import COMPUTE, Collective, End, Receive, Send, Submit, Wait
from threeloops.training.cluster.machine.errors import ClusterError, Deadlock, Mismatch, Unfinished
from threeloops.training.cluster.machine.records import Actor, Message

__all__ = ["Ledger", "at_line"]

_WORLD = "0"
"""torch's name for the group of all ranks."""
_KEEP = "keep the handle, and wait()"


class Ledger:
    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.waiting: dict[Actor, Wait] = {}
        self.begun: dict[tuple[Actor, int], Send | Receive | Submit] = {}
        """Handles that nobody has waited for to the end."""
        self.ended: dict[int, End] = {}
        self.died: dict[int, float] = {}
        """The time at which each dead rank died."""
        self._collectives: dict[str, list[tuple[Collective, int, str]]] = defaultdict(list)
        """The n-th collective of each group, the rank that called it first, and where."""
        self._called: dict[tuple[str, int], int] = defaultdict(int)
        """How many collectives of a group a rank has called."""

    def check_sizes(self, message: Message, receiver: Actor, receive: Receive) -> None:
        if receive.size == message.size:
            return
        source = message.source
        target = receiver.rank
        if receiver.timeline == COMPUTE:
            why = "the tensors of both sides need the same shape and dtype"
        else:
            why = f"rank {source}'s part for rank {target} and rank {target}'s part from rank {source} must be as long"
        raise Mismatch(
            f"rank {source} sends {message.size:,} bytes to rank {target}{at_line(message.where)}, and rank {target} "
            f"receives {receive.size:,}{at_line(receive.where)}: {why}"
        )

    def check_agreement(self, rank: int, call: Submit) -> None:
        """Check that the n-th collective of a group is the same on all of its ranks. The first rank that calls it
        defines it."""
        group = call.collective.group
        number = self._called[group, rank]
        made = self._collectives[group]
        self._called[group, rank] += 1
        if number == len(made):
            made.append((call.collective, rank, call.where))
            return
        first, by, where = made[number]
        if first.ranks != call.collective.ranks:
            mine = _ranks(call.collective.ranks)
            raise Mismatch(
                f"group {group!r} is {_ranks(first.ranks)} on rank {by} and {mine} on rank {rank}{at_line(call.where)}:"
                " every rank must call new_group for every group, in the same order, also for groups that it is not in"
            )
        if first != call.collective:
            raise Mismatch(
                f"collective {number + 1} of group {group!r} differs: rank {by} calls {first}{at_line(where)}, "
                f"rank {rank} calls {call.collective}{at_line(call.where)}. All ranks of a group must call the "
                "same collectives in the same order"
            )

    def stuck(self, done: Container[tuple[Actor, int]]) -> list[tuple[float, Actor, Send | Receive]]:
        """Who waits for a message or a receiver, and since when; the longest first."""
        waits: list[tuple[float, Actor, Send | Receive]] = []
        for actor, wait in self.waiting.items():
            for begun in [self.begun[actor, handle] for handle in wait.handles if (actor, handle) not in done]:
                if isinstance(begun, Send | Receive):
                    waits.append((wait.at, actor, begun))
        return sorted(waits, key=lambda wait: wait[:2])

    def check_begun(self, actor: Actor, wait: Wait) -> None:
        for handle in wait.handles:
            if (actor, handle) not in self.begun:
                raise ClusterError(f"{actor} waits{at_line(wait.where)} for handle {handle}, which it never made")

    def check_ended(self) -> None:
        """Check, once nothing more can happen, that all ranks have returned and that nothing is unfinished. If a rank
        failed, nothing is checked, because the failure explains why others still wait."""
        if any(end.error for end in self.ended.values()):
            return
        if self.waiting:
            computing = {actor.rank for actor in self.waiting if actor.timeline == COMPUTE}
            shown = [a for a in sorted(self.waiting) if a.timeline == COMPUTE or a.rank not in computing]
            waits = "\n  ".join(self.describe_wait(actor, self.waiting[actor]) for actor in shown)
            raise Deadlock(f"all ranks that are left wait, and nothing is on its way.\n  {waits}")
        for number, made, by, where, absent in self._incomplete():
            raise Unfinished(
                f"rank {by} calls {made}{at_line(where)}, collective {number + 1} of its group, which "
                f"{_ranks(absent)} did not call: all ranks of a group must call the same collectives"
            )
        lost = [m for m in self.messages if not (m.received or m.target in self.died or self._gave_up(m.channel))]
        if lost:
            first = lost[0]
            raise Unfinished(
                f"{len(lost)} message{'s were' if len(lost) > 1 else ' was'} never received; the first: "
                f"{first.size:,} bytes from rank {first.source} to rank {first.target}{at_line(first.where)}"
            )
        for rank, end in sorted(self.ended.items()):
            if end.forgot is not None and not self.died:  # who is told of a death leaves where it stands
                raise Unfinished(f"rank {rank} never waits for its isend{at_line(end.forgot)}: {_KEEP}")
        for (actor, _), begun in self.begun.items():
            if isinstance(begun, Submit) and self._gave_up(begun.collective.group):
                continue
            if not isinstance(begun, Send) and actor.rank not in self.died:
                what = begun.collective.operation if isinstance(begun, Submit) else f"irecv from rank {begun.source}"
                raise Unfinished(f"{actor} never waits for its {what}{at_line(begun.where)}: {_KEEP}")

    def _incomplete(self) -> Iterator[tuple[int, Collective, int, str, list[int]]]:
        """Yield collectives that not all ranks of their group have called: the number in the group, the collective,
        the rank that called it first and where, and the ranks that did not call it."""
        for group, calls in self._collectives.items():
            for number, (made, by, where) in enumerate([] if self._gave_up(group) else calls):
                if absent := [rank for rank in made.ranks if self._called[group, rank] <= number]:
                    yield number, made, by, where, absent

    def _gave_up(self, group: str) -> bool:
        """Whether a rank of this group has died: survivors stop in the middle of its collectives, each elsewhere."""
        calls = self._collectives.get(group, [])
        return any(rank in self.died for made, _, _ in calls[:1] for rank in made.ranks)

    def describe_loss(self, call: Send | Receive, timeout: float) -> str:
        """Return the message for a rank that waited in vain because other ranks have died."""
        what = f"for rank {call.to} to receive" if isinstance(call, Send) else f"for a message from rank {call.source}"
        if (call.to if isinstance(call, Send) else call.source) in self.ended:
            what += ", which has returned"
        dead = ", ".join(f"rank {rank} died at {when:g} s" for rank, when in sorted(self.died.items()))
        return f"waited {timeout:g} s {what}; {dead}"

    def describe_wait(self, actor: Actor, wait: Wait) -> str:
        """Say which rank waits for what, and where."""
        begun = [call for handle in wait.handles if (call := self.begun.get((actor, handle)))]
        for call in sorted(begun, key=lambda call: not isinstance(call, Receive)):
            if isinstance(call, Receive | Send):
                return f"{actor} waits{at_line(wait.where)} for {self._describe_message(call)}"
        for submit in begun:
            if isinstance(submit, Submit):
                made = self._collectives[submit.collective.group]
                number = max(n for n, (collective, _, _) in enumerate(made) if collective == submit.collective)
                absent = [r for r in submit.collective.ranks if self._called[submit.collective.group, r] <= number]
                who = f", which {_ranks(absent)} did not call" if absent else ""
                return f"{actor} waits{at_line(wait.where)} for {submit.collective}{who}"
        return f"{actor} waits{at_line(wait.where)}"

    def _describe_message(self, call: Send | Receive) -> str:
        label = f" with tag {call.tag}" * (call.tag != 0) + f" in group {call.channel!r}" * (call.channel != _WORLD)
        if isinstance(call, Receive):
            peer = call.source
            what = f"a message from rank {call.source}{label}"
        else:
            peer = call.to
            what = f"rank {call.to} to receive its message{label}"
        if peer in self.died:
            return f"{what}, which died at {self.died[peer]:g} s"
        return f"{what}, which has returned" if peer in self.ended else what


def at_line(where: str) -> str:
    return f" ({where})" if where else ""


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
