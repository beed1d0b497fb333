"""Enums for programs; the sentences that go with them are for people."""

from __future__ import annotations

from typing import Literal

Resource = Literal["cpu", "cache", "memory bandwidth", "network", "disk", "unclear", "own limit"]
"""own limit: no neighbour takes it. The server gets no more CPU than a limit of its own allows."""
State = Literal["calm", "interference", "overload", "all_slow", "unknown", "slow", "errors"]
"""slow: as `interference`, of a server that is slow by itself while no cause is seen: it has no monitor, or it is a
virtual machine whose neighbour does not show in it yet.
errors: its requests fail, and those of its peers do not."""
SLOW_ALONE: frozenset[State] = frozenset(("interference", "slow", "errors"))
"""The states of a server that is worse than its peers by itself, from which load may be taken."""
Switchable = Literal["errors", "own_limit", "warm_up"]
"""Causes that a pool's settings can leave without consequences (`causes_off`)."""
WARM_UP: Switchable = "warm_up"
Mode = Literal["observe", "act"]
DecisionCause = Literal[
    "calm",
    "capacity",
    "interference",
    "slow",
    "errors",
    "own_limit",
    "overload",
    "all_slow",
    "unknown",
    "not_shown",
    "no_gain",
    "peer_fails",
    "tried",
    "fast",
    "away",
    "warm_up",
    "panic",
    "no_verdict",
    "waiting",
    "measured",
    "limited",
    "drained",
    "not_drained",
    "pinned",
    "bounded",
]
"""What decided where a server should be. The states: its Verdict. own_limit: it is slow by a limit of its own.
capacity: calm, with the weight that its capacity allows. not_shown: an episode that nothing shows any more.
no_gain: slow by itself, but to move its load would gain nothing. peer_fails: slow by itself, but another server fails,
and load would be moved to it. tried: a few requests now and then show whether it still is. fast: these were fast, so it
has its baseline weight, until more requests decide. away: it takes no requests, and comes back with a few. warm_up: it
came up, and gets as much of its weight as its requests allow. panic: no Verdict is believed. no_verdict: there is no
fresh one. waiting: for the first Verdict. measured: it keeps its baseline weight while its values are searched.
limited, drained, not_drained: by a request of the second stage. pinned: by an operator. bounded: the guard limited
it."""
SLOW_CAUSES: frozenset[DecisionCause | None] = frozenset((*SLOW_ALONE, "own_limit"))
"""The causes of decisions about servers that are worse than their peers by themselves."""
ChangeCause = Literal[
    DecisionCause,
    "sent_again",
    "not_set",
    "put_back",
    "someone_else",
    "second_stage",
    "renewed",
    "search_over",
    "governor",
    "ordered",
    "refused",
    "given_back",
    "lease_ended",
    "not_as_ordered",
    "by_hand",
    "engine_ended",
    "engine_died",
    "not_put_back",
    "chronic",
    "replacing",
    "replaced",
    "replace_failed",
    "replace_timeout",
    "replace_given_up",
    "replace_unknown",
    "same_machine",
]
"""sent_again: the balancer was made anew and had forgotten it. not_set: the balancer did not take it. put_back:
lbengine set the baseline again. someone_else: somebody else changed it. second_stage, renewed, search_over: an Order
for an episode, one that renews a lease, the first one after a search. governor: an Order of the governor, or one
that it would give. ordered: an Order was carried out. refused: it was not. given_back, lease_ended, not_as_ordered,
by_hand, engine_ended, engine_died: why a wsengine put a knob back, as `someone_else`. not_put_back: it could not,
and tries again. chronic: a machine is worth replacing. replacing: the site's command is called for it. replaced,
replace_failed, replace_timeout: how that ended. replace_given_up: before the command. replace_unknown: nobody was there
to see its end. same_machine: it is said to be replaced, and the same one came back."""
REPLACE_ENDS: frozenset[ChangeCause | None] = frozenset(
    ("replaced", "replace_failed", "replace_timeout", "replace_given_up", "replace_unknown")
)
"""Causes of the Change that ends the replacement of a machine."""
PUT_BACK: frozenset[ChangeCause] = frozenset(
    ("given_back", "lease_ended", "not_as_ordered", "by_hand", "engine_ended", "engine_died", "someone_else")
)
"""Causes of a wsengine's Changes that put a knob back."""
AbsenceCause = Literal[
    "switched_off",
    "no_interface",
    "no_capture",
    "other_protocol",
    "lacks_capability",
    "no_libpfm",
    "no_hardware_counters",
    "no_perf_event",
    "may_not_count",
    "container_forbids",
    "no_process",
    "no_psi",
    "no_cgroup",
    "permission_denied",
]
"""What is missing where a monitor cannot measure something, and something can be done about it: lacks_capability,
CAP_NET_RAW as a rule; other_protocol: a port speaks something else than the settings say; may_not_count: the kernel
forbids hardware counters; container_forbids: a container's seccomp profile; permission_denied: a file may not be
read."""
KnobCause = Literal["not_read", "unreadable", "ending", "someone_else"]
"""not_read: not yet. unreadable: what it needs is not there. ending: it is being put back. someone_else: somebody else
changed it in this episode."""
CycleOutage = Literal["no_answer", "refused"]
"""no_answer: the balancer does not answer. refused: it answers, and refused what was asked of it."""
ServerCondition = Literal["up", "unchecked", "draining", "maintenance", "down"]
"""What a balancer lets a server do. unchecked: it takes requests, and the balancer has no health check for it.
draining: it finishes what it has. maintenance: somebody took it out. down: the balancer's checks took it out."""
TAKES_REQUESTS: frozenset[ServerCondition] = frozenset(("up", "unchecked"))
EpisodeMark = Literal["neighbour", "deploy", "backup", "false_alarm", "other"]
"""What a person says an episode was. neighbour: it was right. deploy, backup: the server competed with itself.
false_alarm: nothing was wrong. other: something else slowed it."""
WeightsMean = Literal["share", "draws", "concurrency", "keys", "none"]
"""share: of the requests. draws: of the draws, of which the server with fewer requests in flight for its weight is
taken. concurrency: of the requests in flight. keys: of the keys that are hashed. none: nothing."""
EvennessOutcome = Literal["even", "uneven", "coarse", "by_itself", "not_known"]
"""even: other weights would gain nothing. uneven: they would. coarse: they would, but the configured weights are too
small for them. by_itself: the balance algorithm goes by the requests in flight, and other weights would undo that.
not_known: the capacity of some server is not known well enough."""
