"""``python -m tinyserve``: starts workers, answers the prompts twice, and compares.

Exit status: 0 all texts agree; 1 a text differs or a request failed; 2 wrong arguments or a missing
package; 130 interrupted.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import signal
import sys
from collections.abc import Sequence
from typing import Any, Callable, NoReturn

from . import weights
from .cache import pages_for
from .coordinator import Coordinator, Fault, Request, State
from .fleet import Fleet
from .report import Outcome, document, table
from .tokenizer import Tokenizer

DEFAULT_PROMPT = """\
A lighthouse keeper on a small northern island kept two notebooks. In the first one she wrote what
the lamp needed: litres of oil, hours of burning, the date when a lens was cleaned, the name of the
boat that brought new wicks. In the second one she wrote what she saw from the gallery: whales in
March, a ship without lights, the green flash after sunset, a storm that threw stones over the roof.
When her nephew came to take over, she gave him only the first notebook and told him that everything
he had to know was in it. He read it in one evening and did his work well. But in his first winter a
fog came that lasted nine days, and the numbers did not tell him whether to ring the bell every
minute or every five, nor how a man stays awake for so long. He wrote to her, and with the next boat
the second notebook arrived. On the page for a January thirty years ago it said: "Fog, eight days.
Rang every three minutes. Sang between the bells, so as not to count them. The fishermen said later
that they steered by the singing." The nephew could not sing. He played the mouth organ instead,
badly, through eight nights, and no boat was lost. In spring he began a second notebook of his own,
and on its first page he wrote down the name of every fisherman who had complained about the music.

Summarise this story in two sentences, then say what the second notebook was good for."""

_READY_SECONDS = 120.0
_LIMITS = {
    "prefill": (1, 16),
    "decode": (1, 16),
    "tokens": (1, 2048),
    "requests": (1, 256),
    "pages": (16, 1 << 16),
}


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _number(name: str) -> Callable[[str], int]:
    low, high = _LIMITS[name]

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text!r}; allowed: whole numbers {low} to {high}")
        return value

    return parse


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.1 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r}; allowed: 0.1 to 3600 seconds")
    return value


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The checked command line; leaves the process with status 2 and a message when it is wrong."""
    parser = argparse.ArgumentParser(
        prog="tinyserve",
        description="Answers prompts with prefill and decode in separate processes, whose KV cache "
        "moves through Moonpool; then again in one process, and compares.",
    )
    add = parser.add_argument
    add("--prompt", action="append", metavar="TEXT", help="a question; may be repeated")
    add("--prefill", type=_number("prefill"), default=1, metavar="N", help="prefill workers")
    add("--decode", type=_number("decode"), metavar="M", help="decode workers (default 1)")
    add("--requests", type=_number("requests"), metavar="R",
        help="how many requests; the prompts are used in turn (default: one for each prompt, "
        "and enough to keep every prefill worker busy)")  # fmt: skip
    add("--tokens", type=_number("tokens"), default=32, metavar="N", help="new tokens at most")
    add("--transport", choices=["auto", "tcp", "local"], default="auto",
        help="how the KV cache travels (default auto)")  # fmt: skip
    add("--fault", choices=["kill", "freeze"],
        help="harm the first request's decode worker; needs --decode 2 or more")  # fmt: skip
    add("--fault-at", choices=["transfer", "decode"], default="transfer",
        help="when to harm it (default transfer)")  # fmt: skip
    add("--pages", type=_number("pages"), metavar="N",
        help="pages of 16 tokens in each worker's cache (default: enough for all requests)")  # fmt: skip
    add("--transfer-timeout", type=_seconds, default=5.0, metavar="S", help="limit of one batch")
    add("--stall-timeout", type=_seconds, default=5.0, metavar="S",
        help="a worker that is silent for longer is given up")  # fmt: skip
    add("--json", action="store_true", help="print one JSON line at the end")
    options = parser.parse_args(arguments)
    options.prompt = options.prompt or [DEFAULT_PROMPT]
    if not all(text.strip() for text in options.prompt):
        parser.error("argument --prompt: is empty; allowed: any text with a visible character")
    if options.fault and options.decode == 1:
        parser.error("argument --fault: needs another decode worker to move to; "
                     "allowed with --decode 2 to 16, not --decode 1")  # fmt: skip
    options.decode = options.decode or (2 if options.fault else 1)
    options.requests = options.requests or max(len(options.prompt), options.prefill)
    return options


def _stop(message: str) -> NoReturn:
    _say(f"tinyserve: error: {message}")
    sys.exit(2)


def make_requests(
    options: argparse.Namespace, tokenizer: Tokenizer, config: weights.ModelConfig
) -> list[Request]:
    """One request for each prompt, repeated as asked. Stops the program when one is too long."""
    prompts = []
    for text in options.prompt:
        tokens = tokenizer.chat([("user", text)])
        longest = config.context_tokens_max - options.tokens
        if len(tokens) > longest:
            _stop(f"argument --prompt: has {len(tokens)} tokens; allowed: at most {longest} "
                  f"(context of {config.context_tokens_max} less --tokens)")  # fmt: skip
        prompts.append(tokens)
    needed = options.requests * max(pages_for(len(tokens) + options.tokens) for tokens in prompts)
    if options.pages is None:
        options.pages = max(needed, _LIMITS["pages"][0])
    elif options.pages < needed:
        _stop(f"argument --pages: {options.pages} is too few; allowed: at least {needed} here")
    return [
        Request(f"r{number}", prompts[number % len(prompts)], options.tokens, hold=True)
        for number in range(options.requests)
    ]


def run(options: argparse.Namespace, fleet: Fleet, shared: weights.SharedWeights,
        tokenizer: Tokenizer) -> list[Outcome]:  # fmt: skip
    """Starts the workers and runs every request, split and then monolithic."""
    requests = make_requests(options, tokenizer, shared.config)
    setup: dict[str, Any] = {
        "config": shared.config.to_json(),
        "pages": options.pages,
        "transports": None if options.transport == "auto" else [options.transport],
        "transfer_timeout_seconds": options.transfer_timeout,
    }
    _say(f"starting {options.prefill} prefill and {options.decode} decode workers")
    fleet.start("prefill", options.prefill, shared, setup)
    fleet.start("decode", options.decode, shared, setup)
    coordinator = Coordinator(fleet, tokenizer.end_of_turn, _say)
    coordinator.wait_until_ready(_READY_SECONDS)
    _say(f"running {len(requests)} requests, prefill and decode in separate processes")
    fault = Fault(options.fault, options.fault_at) if options.fault else None
    coordinator.run(requests, fault)
    alone = [coordinator.run_transfer(r) if r.state is State.DONE else {} for r in requests]
    _say("running the same prompts in one process, to compare")
    compared: dict[tuple[int, ...], Request] = {}
    for request in requests:
        key = tuple(request.tokens)
        if key not in compared:
            compared[key] = Request(f"{request.name}-one", request.tokens, options.tokens)
            coordinator.run_monolithic(compared[key])
    outcomes = []
    for request, transfer in zip(requests, alone):
        other = compared[tuple(request.tokens)]
        texts = tokenizer.decode(request.output), tokenizer.decode(other.output)
        outcomes.append(Outcome(request, other, *texts, transfer))
    return outcomes


def show(outcomes: list[Outcome]) -> None:
    """Prints the texts and the table."""
    shown = set()
    for outcome in outcomes:
        if outcome.text_split not in shown:
            print(f"\n{outcome.split.name} answers:\n{outcome.text_split}")
            shown.add(outcome.text_split)
        if not outcome.same:
            reason = outcome.split.failure or outcome.monolithic.failure or "the texts differ"
            print(f"\n{outcome.split.name} FAILED: {reason}")
            print(f"in one process it says:\n{outcome.text_monolithic}")
    print(f"\n{table(outcomes)}", flush=True)


def _interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_arguments(arguments)
    if importlib.util.find_spec("moonpool") is None:
        _stop("python package moonpool is not installed; run script/demo, or script/install-venv")
    for number in (signal.SIGINT, signal.SIGTERM):  # A shell's background job ignores SIGINT.
        signal.signal(number, _interrupt)
    fleet = Fleet(options.stall_timeout)
    try:
        reader = weights.open_gguf()
        tokenizer = Tokenizer(reader)
        shared = weights.SharedWeights(reader)
        outcomes = run(options, fleet, shared, tokenizer)
    except KeyboardInterrupt:
        _say("interrupted; ending the workers")
        fleet.close(grace_seconds=0.5)
        return 130
    except weights.ModelError as error:
        _stop(str(error))
    except RuntimeError as error:
        _say(f"tinyserve: error: {error}")
        return 1
    finally:
        fleet.close()
    show(outcomes)
    if options.json:
        print(json.dumps(document(outcomes)), flush=True)
    return 0 if all(outcome.same for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
