"""What a running benchmark shows: a table that fills, on standard error."""

from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live as RichLive
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

if TYPE_CHECKING:
    from draftwood.bench.journal import Journal
    from draftwood.bench.measuring import Plan
    from draftwood.bench.records import RequestRecord


class Live:
    """Totals so far, a row per contestant, and a bar. A context manager.

    On a terminal it is drawn anew after every record; elsewhere each finished prompt is a line.
    """

    def __init__(self, plan: "Plan", journal: "Journal") -> None:
        self.plan, self.journal = plan, journal
        self._console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=self._console,
        )
        self._task = self._bar.add_task("warming up", total=len(plan), completed=self._done())
        self._live = RichLive(console=self._console, transient=True, auto_refresh=False)

    def __enter__(self) -> "Live":
        if self._console.is_terminal:
            self._live.start()
            self._draw()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, record: "RequestRecord") -> None:
        """`record` has just been added to the journal."""
        self._bar.update(self._task, description=record.prompt, completed=self._done())
        if self._console.is_terminal:
            self._draw()
        elif self._done() % len(self.plan.contestants) == 0:
            self._console.print(
                f"{record.prompt}, repetition {record.repetition + 1}: "
                f"{self._done()} of {len(self.plan)} requests"
            )

    def _done(self) -> int:
        return sum(key in self.journal.records for key in self.plan.order())

    def _draw(self) -> None:
        self._live.update(Group(self._table(), self._bar), refresh=True)

    def _table(self) -> Table:
        columns = ("pipeline", "requests", "tokens/s", "times plain", "tokens/round")
        table = Table(*columns, box=None, header_style="dim")
        sums = {each.name: _Sums() for each in self.plan.contestants}
        for key in self.plan.order():
            if record := self.journal.records.get(key):
                sums[record.contestant].add(record)
        for each in self.plan.contestants:
            mine, plain = sums[each.name], sums[each.plain]
            faster = f"{mine.speed / plain.speed:.2f}" if mine.speed and plain.speed else "-"
            table.add_row(
                each.name,
                str(mine.requests),
                f"{mine.speed:.1f}" if mine.speed else "-",
                faster,
                f"{mine.committed / mine.rounds:.2f}" if mine.rounds else "-",
            )
        return table


class _Sums:
    """Totals of one contestant."""

    def __init__(self) -> None:
        self.requests = self.tokens = self.rounds = self.committed = 0
        self.seconds = 0.0

    def add(self, record: "RequestRecord") -> None:
        self.requests += 1
        self.tokens += len(record.tokens)
        self.seconds += record.seconds
        if record.rounds:
            self.rounds += len(record.rounds)
            self.committed += sum(record.rounds.committed)

    @property
    def speed(self) -> float:
        """Tokens per second so far."""
        return self.tokens / self.seconds if self.seconds else 0.0
