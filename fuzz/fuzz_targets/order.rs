//! Orders with a valid signature and any content.
#![no_main]

use std::sync::LazyLock;

use slackwater_messages::Value;
use slackwater_node::settings::parse;
use slackwater_wsengine::config::Settings;
use slackwater_wsengine::identity::Identity;
use slackwater_wsengine::order::{OrderContext, is_release, judge};

const SETTINGS: &str = "node = \"web1\"\npool = \"web\"\n[php_fpm]\nmax_children = [2, 20]\n[bus]\nurl = \"nats://b:1\"\n";
const NOW_UNIX_S: f64 = 1_700_000_000.0;

static HERE: LazyLock<Settings> = LazyLock::new(|| parse(SETTINGS, "wsengine.toml", "web1").expect("settings"));

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let (identity, signature) = Identity::of_this_process(data).expect("a key");
    let is_repeated = |id: &str| id == "seen";
    let context =
        OrderContext { settings: &HERE, identity: &identity, is_repeated: &is_repeated, now_unix_s: NOW_UNIX_S };
    match judge(data, Some(&signature), &context) {
        Ok(accepted) => {
            assert!(accepted.left_s > 0.0 && accepted.left_s <= HERE.orders.max_lease_s, "{}", accepted.left_s);
            assert_eq!(accepted.order.node, "web1");
            let is_within = (2..=20).any(|number| accepted.value == Value::Integer(number));
            assert!(is_within || is_release(&accepted.value), "{:?}", accepted.value);
        }
        Err(refused) => assert!(refused.why.to_string().len() < 2_000, "a refusal fits into a log"),
    }
    assert!(judge(data, None, &context).is_err(), "unsigned");
});
