"""What is known of a worker that is inside of a long step and does not answer."""

from collections.abc import Collection

import msgspec

from pippin.core.models import EngineStats, RequestStatus


def brought_up_to_date(last: EngineStats, ids: Collection[str]) -> EngineStats:
    """The last snapshot, with the requests that came since, as queued ones, and without those that left."""
    here = set(ids)
    known = {each.id for each in last.requests}
    new = [RequestStatus(id=each, phase="queued") for each in ids if each not in known]
    return msgspec.structs.replace(
        last,
        running=max(0, last.running - len(known - here)),
        waiting=last.waiting + len(new),
        requests=(*(each for each in last.requests if each.id in here), *new),
    )
