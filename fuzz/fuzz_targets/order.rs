//! An Order with a good signature, however its fields are.
#![no_main]

use std::sync::LazyLock;

use slackwater_node::settings::parse;
use slackwater_wsengine::config::Settings;
use slackwater_wsengine::identity::Identity;
use slackwater_wsengine::order::{Context, is_release, judge};

const SETTINGS: &str = "node = \"web1\"\npool = \"web\"\n[php_fpm]\nmax_children = [2, 20]\n[bus]\nurl = \"nats://b:1\"\n";
const NOW_UNIX_S: f64 = 1_700_000_000.0;

static HERE: LazyLock<Settings> = LazyLock::new(|| parse(SETTINGS, "wsengine.toml", "web1").expect("settings"));

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let (identity, signature) = Identity::of_this_process(data).expect("a key");
    let now = Context { settings: &HERE, identity: &identity, seen: &|id| id == "seen", now_unix_s: NOW_UNIX_S };
    match judge(data, Some(&signature), &now) {
        Ok(accepted) => {
            assert!(accepted.left_s > 0.0 && accepted.left_s <= HERE.orders.max_lease_s, "{}", accepted.left_s);
            assert_eq!(accepted.order.node, "web1");
            let bounds = slackwater_messages::Value::Integer;
            let held = (2..=20).any(|number| accepted.value == bounds(number));
            assert!(held || is_release(&accepted.value), "{:?}", accepted.value);
        }
        Err(refused) => assert!(refused.why.to_string().len() < 2_000, "a refusal fits into a log"),
    }
    assert!(judge(data, None, &now).is_err(), "unsigned");
});
