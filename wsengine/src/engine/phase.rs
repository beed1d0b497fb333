//! The phase of a knob between Orders, with all data that belongs to it.

use slackwater_messages::{ChangeCause, Order, Value};

use crate::state::Lease;

/// Why a lease ends, or a Change is made: a cause for programs, and a sentence.
#[derive(Clone)]
pub(super) struct ChangeReason {
    pub(super) cause: ChangeCause,
    pub(super) why: String,
}

impl ChangeReason {
    pub(super) fn new(cause: ChangeCause, why: impl Into<String>) -> ChangeReason {
        ChangeReason { cause, why: why.into() }
    }
}

/// An accepted Order that is not applied yet.
#[derive(Clone)]
pub(super) struct PendingOrder {
    pub(super) order: Order,
    pub(super) value: Value,
    pub(super) until_s: f64,
    pub(super) since_s: f64,
}

/// A knob without a lease.
#[derive(Clone, Default)]
pub(super) enum Free {
    #[default]
    Idle,
    Waiting(Box<PendingOrder>),
    /// Somebody else changed the setting: Orders are refused until none has arrived for the length of a lease.
    TheirsHolds {
        until_s: f64,
    },
}

/// A restore that is not done yet.
#[derive(Clone)]
pub(super) struct Ending {
    pub(super) reason: ChangeReason,
    pub(super) next_try_s: f64,
    /// The error that was last recorded, so that it is recorded once.
    pub(super) last_error: String,
}

impl Ending {
    /// A restore whose first try is due at once.
    pub(super) fn new(reason: ChangeReason) -> Ending {
        Ending { reason, next_try_s: f64::NEG_INFINITY, last_error: String::new() }
    }
}

/// The phase of a knob.
#[derive(Clone)]
pub(super) enum Phase {
    Free(Free),
    /// The lease is in force; another Order may wait to be applied.
    Held {
        lease: Box<Lease>,
        until_s: f64,
        next: Option<Box<PendingOrder>>,
    },
    /// The lease has ended, and the baseline is being put back.
    Ending {
        lease: Box<Lease>,
        ending: Ending,
        then: Free,
    },
}

impl Default for Phase {
    fn default() -> Phase {
        Phase::Free(Free::Idle)
    }
}

impl Phase {
    pub(super) fn lease(&self) -> Option<&Lease> {
        match self {
            Phase::Free(_) => None,
            Phase::Held { lease, .. } | Phase::Ending { lease, .. } => Some(lease),
        }
    }

    pub(super) fn waiting(&self) -> Option<&PendingOrder> {
        match self {
            Phase::Held { next, .. } => next.as_deref(),
            Phase::Free(Free::Waiting(order)) | Phase::Ending { then: Free::Waiting(order), .. } => Some(order),
            Phase::Free(_) | Phase::Ending { .. } => None,
        }
    }

    /// The waiting Order, once it may be applied as soon as its reload group allows: not before the last lease is put
    /// back.
    pub(super) fn ready(&self) -> Option<&PendingOrder> {
        if self.ending().is_some() { None } else { self.waiting() }
    }

    pub(super) fn take_waiting(&mut self) -> Option<PendingOrder> {
        let free = match self {
            Phase::Held { next, .. } => return next.take().map(|order| *order),
            Phase::Free(free) | Phase::Ending { then: free, .. } => free,
        };
        match std::mem::take(free) {
            Free::Waiting(order) => Some(*order),
            other => {
                *free = other;
                None
            }
        }
    }

    /// Lets an Order wait; returns the waiting Order that it replaces.
    pub(super) fn wait(&mut self, order: PendingOrder) -> Option<PendingOrder> {
        let replaced = self.take_waiting();
        let order = Box::new(order);
        match self {
            Phase::Held { next, .. } => *next = Some(order),
            Phase::Free(free) | Phase::Ending { then: free, .. } => *free = Free::Waiting(order),
        }
        replaced
    }

    pub(super) fn ending(&self) -> Option<&Ending> {
        if let Phase::Ending { ending, .. } = self { Some(ending) } else { None }
    }

    pub(super) fn ending_mut(&mut self) -> Option<&mut Ending> {
        if let Phase::Ending { ending, .. } = self { Some(ending) } else { None }
    }

    /// Until when somebody else's value holds, in seconds of the monotonic clock.
    pub(super) fn theirs_until_s(&mut self) -> Option<&mut f64> {
        match self {
            Phase::Free(Free::TheirsHolds { until_s }) => Some(until_s),
            Phase::Ending { then: Free::TheirsHolds { until_s }, .. } => Some(until_s),
            _ => None,
        }
    }

    /// Ends the lease that is in force. Without one nothing happens; a lease that ends already keeps its reason.
    pub(super) fn end(&mut self, reason: ChangeReason) {
        *self = match std::mem::take(self) {
            Phase::Held { lease, next, .. } => {
                Phase::Ending { lease, ending: Ending::new(reason), then: next.map_or(Free::Idle, Free::Waiting) }
            }
            other => other,
        };
    }

    /// As [`Phase::end`], and somebody else's value holds until `until_s`. Returns the Order that waited.
    pub(super) fn give_way(&mut self, reason: ChangeReason, until_s: f64) -> Option<PendingOrder> {
        let waiting = self.take_waiting();
        self.end(reason);
        if let Phase::Ending { then, .. } = self {
            *then = Free::TheirsHolds { until_s };
        }
        waiting
    }

    /// Notes that the baseline is put back; returns the lease that ended, with the reason.
    pub(super) fn put_back(&mut self) -> Option<(Lease, ChangeReason)> {
        match std::mem::take(self) {
            Phase::Ending { lease, ending, then } => {
                *self = Phase::Free(then);
                Some((*lease, ending.reason))
            }
            other => {
                *self = other;
                None
            }
        }
    }
}
