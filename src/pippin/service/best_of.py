"""The best of several choices: those of the highest mean log probability, numbered anew."""

from collections import defaultdict

import msgspec

from pippin.core.events import Event, Finished, PartDelta, PartEnded, PartStarted, Usage
from pippin.core.requests import GenerationRequest


def widened(request: GenerationRequest) -> GenerationRequest:
    """The request that the engine runs: all candidates, with the log probabilities that judge them."""
    if request.best_of is None or request.best_of <= request.n:
        return msgspec.structs.replace(request, best_of=None)
    logprobs = 0 if request.logprobs is None else request.logprobs
    return msgspec.structs.replace(request, n=request.best_of, best_of=None, logprobs=logprobs)


def best_choices(events: list[Event], request: GenerationRequest) -> list[Event]:
    """The events of the `request.n` best candidates, best first. All other events stay in front.

    Every candidate was computed and is counted: the best one's usage bears those that are left out.
    """
    means = _mean_logprobs(events)
    ranking = sorted(means, key=lambda choice: (-means[choice], choice))[: request.n]
    number = {choice: rank for rank, choice in enumerate(ranking)}
    kept: dict[int, list[Event]] = {rank: [] for rank in range(len(ranking))}
    rest: list[Event] = []
    left_out = [event.usage for event in events if isinstance(event, Finished) and event.choice not in number]
    for event in events:
        match event:
            case PartStarted(choice) | PartDelta(choice) | PartEnded(choice) | Finished(choice):
                if choice in number:
                    kept[number[choice]].append(_renumbered(event, number[choice], request))
            case _:
                rest.append(event)
    if kept and isinstance(last := kept[0][-1], Finished):
        kept[0][-1] = msgspec.structs.replace(last, usage=_bearing(last.usage, left_out))
    return rest + [event for rank in kept for event in kept[rank]]


def _bearing(usage: Usage, others: list[Usage]) -> Usage:
    """With what the completions of others cost; their prompt is the same."""
    every = (usage, *others)
    return msgspec.structs.replace(
        usage,
        completion_tokens=sum(each.completion_tokens for each in every),
        reasoning_tokens=sum(each.reasoning_tokens for each in every),
        draft_tokens=sum(each.draft_tokens for each in every),
        accepted_tokens=sum(each.accepted_tokens for each in every),
    )


def _mean_logprobs(events: list[Event]) -> dict[int, float]:
    sums: dict[int, float] = defaultdict(float)
    counts: dict[int, int] = defaultdict(int)
    for event in events:
        match event:
            case PartDelta(choice, _, _, tokens):
                sums[choice] += sum(token.logprob or 0.0 for token in tokens)
                counts[choice] += len(tokens)
            case Finished(choice):
                counts[choice] += 0  # a candidate, even if it said nothing
    return {choice: sums[choice] / count if count else 0.0 for choice, count in counts.items()}


def _renumbered(
    event: PartStarted | PartDelta | PartEnded | Finished, choice: int, request: GenerationRequest
) -> Event:
    if isinstance(event, PartDelta) and request.logprobs is None:
        event = msgspec.structs.replace(event, tokens=())
    return msgspec.structs.replace(event, choice=choice)
