"""A training run as a person watches it: progress, results, the files of the run.

It must never write to stdout what is not the result when the result is JSON.
"""

from __future__ import annotations

import contextlib
import csv
import math
import time
from pathlib import Path
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

import vkdnn as vk
from vkdnn.checkpoint import CheckpointError, reserve
from vkdnn.cli.console import (
    INTERRUPTED,
    CountColumn,
    counted,
    full_name,
    print_json,
    printable,
    resume_command,
    short_name,
)
from vkdnn.cli.train_model import layers_of
from vkdnn.cli.train_verify import verdict
from vkdnn.nn import NO_LEVERS, Levers
from vkdnn.train import (
    CHECKPOINT_NAME,
    Corpus,
    Job,
    Parity,
    Start,
    State,
    Stop,
    Trainer,
    compare,
    generate,
    plot_losses,
    run_steps,
)

PARITY_STEPS = 3  # of the run, done again on the reference
SAVE_SECONDS = 60.0  # between checkpoints
CLAIM = ".running"  # in the folder of a run until it ends, so that no other begins there
LAST = 10  # steps whose mean is reported as the loss: a single batch says little
SAMPLE_PROMPT = b"def "
SAMPLE_BYTES = 240


class Run:
    """One run: go() trains, then prints and writes what came of it."""

    def __init__(
        self,
        job: Job,
        corpus: Corpus,
        device: vk.Device,
        folder: Path,
        console: Console,
        as_json: bool,
        seconds: float | None,
        every: int | None = None,
        start: Start | None = None,
        limited: bool = False,
        levers: Levers = NO_LEVERS,
    ):
        self.job, self.corpus, self.device, self.folder = job, corpus, device, folder
        self.console, self.as_json, self.seconds = console, as_json, seconds
        self.every, self.start = every, start  # steps between checkpoints (None: by time); where the run goes on
        self.limited = limited  # seconds are the default's, which --steps lifts
        self.levers = levers
        self.begun_at = len(start.losses) if start is not None else 0
        self.saved_at = self.begun_at  # the step of the last checkpoint
        self.checkpoint = folder / CHECKPOINT_NAME if start is None else start.path
        self.early: State | None = None  # after the first steps, for the parity check
        self.seconds_used = 0.0  # by training
        self.first_done = 0.0  # when the first step, with its compiling, was done
        self.rate = 0.0  # tokens a second

    def go(self) -> None:
        """Raises typer.Exit: 1 when bits differ from the reference's, 130 after Ctrl-C.

        Raises CheckpointError when a checkpoint cannot be written: before training, where that can be known.
        """
        try:
            self._go()
        finally:
            self._leave()

    def _go(self) -> None:
        trainer = Trainer(self.job, self.corpus, self.device, self._compiled, self.start, self.levers)
        # An old checkpoint stays until the new one is whole, so a fresh run needs room for two.
        reserve(self.checkpoint, trainer.checkpoint_bytes * (2 if self.start is None else 1))
        config, count = self.job.config, trainer.parameter_count
        self._line("model", f"{self.job.kind.title}, {layers_of(config)}, {count:,} parameters")
        self._line("text", str(self.corpus))
        self._line("device", full_name(self.device))
        if self.start is not None:
            self._line("resumed", f"after step {self.begun_at} of {self.job.steps}")
            if self.start.version != vk.__version__:
                self._line("note", f"begun with vkdnn {self.start.version}; other versions may give other bits")
        with Stop() as stop:
            self._train(trainer, stop)
            try:
                self._write(trainer)
            except KeyboardInterrupt:  # Ctrl-C again: what is at the final names is whole
                self._abandon(len(trainer.losses), "after")
        losses = trainer.losses
        last = losses[-LAST:]
        loss = sum(last) / len(last)
        mean = f" (mean of the last {len(last)} steps)" if len(last) > 1 else ""
        speed = f", {self.rate:,.0f} tokens/s" if self.rate else ""
        self._line("loss", f"{losses[0]:.3f} → {loss:.3f} nats a byte{mean}, {counted(len(losses), 'step')}{speed}")
        digest = trainer.digest()
        self._line("digest", digest)
        sample: str | None = None
        parity: Parity | None = None
        stopped = stop.asked
        if stopped:
            how = f"the checkpoint is kept; go on with {resume_command(self.folder)}"
            self._line("stopped", f"by Ctrl-C after step {len(losses)} of {self.job.steps}; {how}")
        else:
            if len(losses) < self.job.steps:
                whole = f"; all steps at once: --steps {self.job.steps}" if self.limited else ""
                self._line(
                    "stopped",
                    f"after {self.seconds_used:.0f} s at step {len(losses)} of {self.job.steps}; "
                    f"go on with {resume_command(self.folder)}{whole}",
                )
            try:
                sample, parity = self._sample(trainer), self._parity()
            except KeyboardInterrupt:
                stopped = True
                self._line("stopped", "by Ctrl-C after training; the checkpoint is kept")
        files = sorted(p.name for p in self.folder.iterdir() if p.name != CLAIM)
        self._line("wrote", f"{self.folder}/: {', '.join(files)}")
        if self.as_json:
            print_json(self._result(losses, loss, digest, sample, parity, stopped))
        if stopped:
            raise typer.Exit(INTERRUPTED)
        if parity is not None and not parity.equal:
            raise typer.Exit(1)

    # ---- training

    def _train(self, trainer: Trainer, stop: Stop) -> None:
        steps, terminal = self.job.steps, self.console.is_terminal
        columns = (
            TextColumn("{task.description}"),
            BarColumn(None),
            CountColumn(),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(),
        )
        begun = saved = time.monotonic()
        with Progress(*columns, console=self.console, transient=True, disable=not terminal, expand=True) as bar:
            self.bar, self.task = bar, bar.add_task("preparing", total=None, note="")
            for number in range(self.begun_at + 1, steps + 1):
                done = number - self.begun_at
                try:
                    loss = trainer.step()
                except KeyboardInterrupt:  # before the first step is done, or Ctrl-C twice
                    self._abandon(number, "in")
                now = time.monotonic()
                self.seconds_used = now - begun
                if done == 1:
                    stop.armed = True
                    self.first_done = now
                    bar.update(self.task, description=escape(short_name(self.device)[:16]), total=steps)
                else:
                    tokens = (done - 1) * self.job.accumulate * self.job.batch * self.job.length
                    self.rate = tokens / max(now - self.first_done, 1e-9)
                note = f"loss {loss:.3f}" + (f"  {self.rate:,.0f} tokens/s" if done > 1 else "")
                bar.update(self.task, completed=number, note=note)
                if not terminal and number * 10 // steps > (number - 1) * 10 // steps:
                    self._line("step", f"{number} of {steps}, {note}")
                if done == min(PARITY_STEPS, steps - self.begun_at) and self.device.kind != "reference":
                    self.early = State.of(trainer, self.begun_at)
                due = number % self.every == 0 if self.every is not None else now - saved > SAVE_SECONDS
                if due and number < steps:
                    self._save_on_the_way(trainer, number)
                    saved = now
                if stop.asked or (self.seconds is not None and self.seconds_used > self.seconds):
                    break

    def _save_on_the_way(self, trainer: Trainer, number: int) -> None:
        """A checkpoint that fails here leaves the one before, and a run that goes on."""
        try:
            trainer.save(self.checkpoint)
            self.saved_at = number
        except OSError as error:
            self._line("warning", f"no checkpoint of step {number}: {error.strerror}; {self._kept()}")
        except KeyboardInterrupt:
            self._abandon(number, "after")

    def _kept(self) -> str:
        if not self.checkpoint.exists():
            return "there is no checkpoint yet"
        return f"an earlier checkpoint, of step {self.saved_at}, is kept in {self.checkpoint}"

    def _abandon(self, number: int, when: str) -> NoReturn:
        self._line("stopped", f"{when} step {number}; {self._kept()}")
        raise typer.Exit(INTERRUPTED)

    def _leave(self) -> None:
        """No claim and no empty folder behind."""
        with contextlib.suppress(OSError):  # a folder that is gone, or closed
            (self.folder / CLAIM).unlink(missing_ok=True)
            if not any(self.folder.iterdir()):
                self.folder.rmdir()

    def _compiled(self, done: int, total: int, label: str) -> None:
        what = "compiling" if done < total else "preparing"  # the driver's part of it still lies ahead
        self.bar.update(self.task, description=what, completed=done, total=total, note="kernels")
        if done == total and not self.console.is_terminal:
            self._line("compiled", counted(total, "kernel"))

    # ---- results

    def _write(self, trainer: Trainer) -> None:
        step = len(trainer.losses)
        try:
            if step != self.saved_at or not self.checkpoint.exists():
                trainer.save(self.checkpoint)
                self.saved_at = step
        except OSError as error:
            raise CheckpointError(
                f"checkpoint: cannot write that of step {step} to {self.folder} ({error.strerror}); {self._kept()}; "
                "free some space, then go on from there with --resume"
            ) from error
        with open(self.folder / "loss.csv", "w", newline="") as file:
            table = csv.writer(file)
            table.writerow(("step", "loss"))
            table.writerows(enumerate(trainer.losses, 1))
        title = f"{self.corpus.name}, {short_name(self.device)}"
        plot_losses(self.folder / "loss.png", trainer.losses, title, math.log(self.job.config.vocab))

    def _counting(self) -> Progress:
        """A bar for what comes after training."""
        columns = (TextColumn("{task.description}"), BarColumn(24), CountColumn())
        return Progress(*columns, console=self.console, transient=True, disable=not self.console.is_terminal)

    def _sample(self, trainer: Trainer) -> str | None:
        path = self.folder / "sample.txt"
        done = self.begun_at == self.job.steps and path.exists()
        if done and path.stat().st_mtime_ns >= self.checkpoint.stat().st_mtime_ns:
            return None  # that of this very checkpoint
        made = bytearray()
        with self._counting() as bar:
            task = bar.add_task("writing a sample, bytes", total=SAMPLE_BYTES)
            for byte in generate(self.job.make_model(), trainer.best, SAMPLE_PROMPT, SAMPLE_BYTES):
                made.append(byte)
                bar.advance(task)
        sample = (SAMPLE_PROMPT + made).decode(errors="replace")
        path.write_text(printable(sample) + "\n", encoding="utf-8")
        self._line("sample", "")
        for line in printable(sample).splitlines():
            self.console.print(f"  [dim]│[/] {escape(line)}")
        return sample

    def _parity(self) -> Parity | None:
        """The first steps of this run, or of this part of it, again on the reference."""
        if self.begun_at == self.job.steps:
            self._line("done", "nothing was left to train")
            return None
        if self.early is None:
            how = "trained on the reference itself" if self.device.kind == "reference" else "too few steps for it"
            self._line("parity", how)
            return None
        steps = len(self.early.losses)
        with self._counting() as bar:
            task = bar.add_task("the first steps again on the reference", total=steps)

            def stepped(_: str, done: int) -> None:
                bar.update(task, completed=done)

            truth = run_steps(self.job, self.corpus, vk.device("cpu"), steps, stepped, start=self.start)
        parity = compare(self.device.name, self.early, truth)
        which = "the first steps" if self.start is None else f"the first steps after step {self.begun_at}"
        self._line("parity", f"{which} again on the NumPy reference:")
        self.console.print(f"  {parity.digest}  {short_name(self.device)}", markup=False)
        self.console.print(f"  {parity.reference}  reference", markup=False)
        self.console.print(f"  {verdict(parity)}")
        return parity

    def _result(
        self,
        losses: list[float],
        loss: float,
        digest: str,
        sample: str | None,
        parity: Parity | None,
        interrupted: bool,
    ) -> dict[str, Any]:
        found: dict[str, Any] | None = None
        if parity is not None:
            found = {"steps": parity.steps, "digest": parity.digest, "reference": parity.reference}
            found["equal"] = parity.equal
        return {
            "model": self.job.model,
            "device": self.device.name,
            "steps": len(losses),
            "resumed_after": self.begun_at if self.start is not None else None,
            "digest": digest,
            "first_loss": losses[0],
            "loss": loss,
            "tokens_per_second": self.rate,
            "folder": str(self.folder),
            "checkpoint": str(self.checkpoint),
            "sample": sample,
            "parity": found,
            "interrupted": interrupted,
        }

    def _line(self, name: str, text: str) -> None:
        self.console.print(f"[bold]{name:<9}[/]{escape(text)}")
