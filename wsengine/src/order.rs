//! Decides whether an Order is accepted, or why not, without touching anything.

use slackwater_messages::{Order, VERSION, Value, decode};
use slackwater_node::settings::nearest;

use crate::allowed::ValueError;
use crate::config::Settings;
use crate::identity::{Identity, SignatureError};
use crate::knobs::{KNOBS, KnobKind};

/// Longest Order in bytes; real ones have a few hundred.
const LONGEST: usize = 16 * 1024;
/// The value that ends a knob's lease.
pub const BASELINE: &str = "baseline";
/// Longest id of an Order, in bytes.
const LONGEST_ID: usize = 64;

/// An Order that may be carried out.
#[derive(Debug)]
pub struct Accepted {
    /// The Order.
    pub order: Order,
    /// Its knob.
    pub knob: &'static KnobKind,
    /// The value as the knob takes it.
    pub value: Value,
    /// The rest of its lease, counted from the Order's own time.
    pub left_s: f64,
}

/// An Order that is not carried out.
#[derive(Debug)]
pub struct Refused {
    /// The knob that it named; `order` when it could not be believed.
    pub what: String,
    /// The value that it asked for.
    pub value: Option<Value>,
    /// Why it is refused.
    pub why: Refusal,
    /// Its id if it is signed: a refused Order may not be repeated either.
    pub id: Option<String>,
}

/// Why an Order is not carried out.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs)] // The messages are the documentation.
pub enum Refusal {
    #[error("it is longer than {LONGEST} bytes")]
    TooLong,
    #[error(transparent)]
    Signature(#[from] SignatureError),
    #[error("it is no Order: {0}")]
    Malformed(String),
    #[error("its id {0:?} is no name")]
    Id(String),
    #[error("its version is {0}, this program reads version {VERSION}")]
    Version(i64),
    #[error("it is for {addressee}, this is {node}")]
    OtherNode { addressee: String, node: String },
    #[error("Order {0} was here before")]
    Repeated(String),
    #[error("its lease of {lease_s} s is not within 0 and {longest_s} s")]
    Lease { lease_s: f64, longest_s: f64 },
    #[error("it was given {0:.1} s from now: is a clock wrong?")]
    Clock(f64),
    #[error("it had expired when it came: a lease of {lease_s} s, given {age_s:.1} s ago")]
    Expired { lease_s: f64, age_s: f64 },
    #[error("there is no knob {name:?}{hint}")]
    UnknownKnob { name: String, hint: String },
    #[error("`{0}` is not configured on this node: Orders may not set it")]
    NotConfigured(&'static str),
    #[error(transparent)]
    Value(#[from] ValueError),
}

/// Everything on which the decision about an Order depends.
pub struct OrderContext<'a> {
    /// The settings.
    pub settings: &'a Settings,
    /// The controller's key.
    pub identity: &'a Identity,
    /// Whether an Order of this id arrived before.
    pub is_repeated: &'a dyn Fn(&str) -> bool,
    /// Wall time.
    pub now_unix_s: f64,
}

/// Judges the bytes of an Order with their signature.
///
/// # Errors
/// Why it is refused.
pub fn judge(payload: &[u8], signature: Option<&str>, context: &OrderContext<'_>) -> Result<Accepted, Box<Refused>> {
    let unbelieved = |why| Box::new(Refused { what: "order".to_owned(), value: None, why, id: None });
    if payload.len() > LONGEST {
        return Err(unbelieved(Refusal::TooLong));
    }
    context.identity.verify(payload, signature).map_err(|error| unbelieved(error.into()))?;
    let order: Order = decode(payload).map_err(|error| unbelieved(Refusal::Malformed(error.to_string())))?;
    if order.id.is_empty() || order.id.len() > LONGEST_ID || !slackwater_messages::is_name(&order.id) {
        return Err(unbelieved(Refusal::Id(shortened(&order.id))));
    }
    match admit(&order, context) {
        Ok((knob, value, left_s)) => Ok(Accepted { knob, value, left_s, order }),
        Err(why) => Err(Box::new(Refused {
            what: if slackwater_messages::is_name(&order.knob) { order.knob.clone() } else { "order".to_owned() },
            value: Some(match order.value {
                Value::Word(word) => Value::Word(shortened(&word)),
                number => number,
            }),
            why,
            id: Some(order.id),
        })),
    }
}

/// Whether a value ends the lease.
pub fn is_release(value: &Value) -> bool {
    matches!(value, Value::Word(word) if word == BASELINE)
}

fn admit(order: &Order, context: &OrderContext<'_>) -> Result<(&'static KnobKind, Value, f64), Refusal> {
    let settings = context.settings;
    if order.v != VERSION {
        return Err(Refusal::Version(order.v));
    }
    if (&order.node, &order.pool) != (&settings.node, &settings.pool) {
        let place = |node: &str, pool: &str| format!("{node} in pool {pool}");
        let addressee = shortened(&place(&order.node, &order.pool));
        return Err(Refusal::OtherNode { addressee, node: place(&settings.node, &settings.pool) });
    }
    if (context.is_repeated)(&order.id) {
        return Err(Refusal::Repeated(order.id.clone()));
    }
    let longest_s = settings.orders.max_lease_s;
    if !(order.lease_s > 0.0 && order.lease_s <= longest_s) {
        return Err(Refusal::Lease { lease_s: order.lease_s, longest_s });
    }
    let age_s = context.now_unix_s - order.time_unix_s;
    if !age_s.is_finite() || age_s < -settings.orders.clock_skew_s {
        return Err(Refusal::Clock(-age_s));
    }
    let left_s = (order.lease_s - age_s).min(order.lease_s);
    if left_s <= 0.0 {
        return Err(Refusal::Expired { lease_s: order.lease_s, age_s });
    }
    let Some(knob) = KNOBS.iter().find(|knob| knob.name == order.knob) else {
        let names: Vec<&str> = KNOBS.iter().map(|knob| knob.name).collect();
        let hint = nearest(&order.knob, &names).map_or(String::new(), |near| format!("; did you mean `{near}`?"));
        return Err(Refusal::UnknownKnob { name: shortened(&order.knob), hint });
    };
    let allowed = (knob.allowed)(settings);
    if allowed.is_empty() {
        return Err(Refusal::NotConfigured(knob.name));
    }
    if is_release(&order.value) {
        return Ok((knob, order.value.clone(), left_s));
    }
    Ok((knob, (knob.check)(settings, &order.value)?, left_s))
}

/// The first 80 characters, without control characters: safe for a line of a log.
fn shortened(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::fixture::Controller;

    const NOW: f64 = 1_795_000_030.0;

    fn settings() -> Settings {
        slackwater_node::settings::parse("[php_fpm]\nmax_children = [1, 32]\n", "w.toml", "web1")
            .expect("valid settings")
    }

    fn order() -> Order {
        Order {
            v: 1,
            id: "o1".to_owned(),
            node: "web1".to_owned(),
            pool: "web".to_owned(),
            time_unix_s: NOW - 1.0,
            knob: "php_fpm.max_children".to_owned(),
            value: Value::Integer(8),
            lease_s: 30.0,
            reason: "test".to_owned(),
            by: "controller".to_owned(),
        }
    }

    fn judged(order: &Order, is_repeated: bool) -> Result<Accepted, Box<Refused>> {
        let controller = Controller::new(1);
        let payload = slackwater_messages::encode(order);
        let signature = controller.sign(&payload);
        let context = OrderContext {
            settings: &settings(),
            identity: &controller.identity(),
            is_repeated: &|_| is_repeated,
            now_unix_s: NOW,
        };
        judge(&payload, Some(&signature), &context)
    }

    #[test]
    fn an_order_within_its_bounds_is_accepted_for_what_is_left_of_its_lease() {
        let accepted = judged(&order(), false).expect("a valid Order");
        assert_eq!((accepted.knob.name, accepted.value), ("php_fpm.max_children", Value::Integer(8)));
        assert!((accepted.left_s - 29.0).abs() < 1e-6);
        let ahead = Order { time_unix_s: NOW + 4.0, ..order() };
        assert!((judged(&ahead, false).expect("a clock may be a little ahead").left_s - 30.0).abs() < 1e-6);
    }

    #[test]
    fn a_refusal_names_what_is_wrong() {
        let word = |text: &str| Value::Word(text.to_owned());
        for (order, message) in [
            (Order { v: 2, ..order() }, "its version is 2"),
            (Order { node: "web2".to_owned(), ..order() }, "it is for web2 in pool web, this is web1 in pool web"),
            (Order { pool: "api".to_owned(), ..order() }, "it is for web1 in pool api"),
            (Order { lease_s: 0.0, ..order() }, "its lease of 0 s is not within 0 and 600 s"),
            (Order { lease_s: 601.0, ..order() }, "its lease of 601 s"),
            (
                Order { time_unix_s: NOW - 30.0, ..order() },
                "it had expired when it came: a lease of 30 s, given 30.0 s",
            ),
            (Order { time_unix_s: NOW + 10.0, ..order() }, "it was given 10.0 s from now: is a clock wrong?"),
            (Order { knob: "php_fpm.max_childs".to_owned(), ..order() }, "did you mean `php_fpm.max_children`?"),
            (Order { knob: "cpu.share".to_owned(), ..order() }, "`cpu.share` is not configured on this node"),
            (Order { value: Value::Integer(33), ..order() }, "33 is not allowed here; allowed is 1 to 32"),
            (Order { value: word("8; reboot"), ..order() }, "has characters that no value has"),
            (Order { value: word("8"), ..order() }, "`8` is not allowed here"),
        ] {
            let refused = judged(&order, false).expect_err("a refusal");
            assert!(refused.why.to_string().contains(message), "{}", refused.why);
            assert_eq!(refused.id.as_deref(), Some("o1"));
        }
        let refused = judged(&order(), true).expect_err("a refusal");
        assert_eq!((refused.what.as_str(), refused.why), ("php_fpm.max_children", Refusal::Repeated("o1".to_owned())));
    }

    #[test]
    fn bytes_that_the_controller_did_not_sign_are_not_even_read() {
        let controller = Controller::new(1);
        let context = OrderContext {
            settings: &settings(),
            identity: &controller.identity(),
            is_repeated: &|_| false,
            now_unix_s: NOW,
        };
        let payload = slackwater_messages::encode(&order());
        let by_another = Controller::new(2).sign(&payload);
        for (payload, signature, message) in [
            (payload.as_slice(), None, "it is not signed"),
            (payload.as_slice(), Some(by_another.as_str()), "it is not signed by the controller"),
            (b"{}".as_slice(), Some(&*controller.sign(b"{}")), "it is no Order: "),
            ([b'x'; 20_000].as_slice(), None, "it is longer than 16384 bytes"),
        ] {
            let refused = judge(payload, signature, &context).expect_err("a refusal");
            assert!(refused.why.to_string().starts_with(message), "{}", refused.why);
            assert_eq!((refused.what.as_str(), refused.id), ("order", None));
        }
    }
}
