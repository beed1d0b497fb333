//! Lines of applications' hot functions, however they are cut; and the same bytes as a policy with its parameters.
#![no_main]

use slackwater_wsengine::fast::events::{Inside, Lines, parse};
use slackwater_wsengine::fast::hurry_up::HurryUp;
use slackwater_wsengine::fast::parameters::Parameters;

const PROCESS: u32 = 7;

fn events(parts: &[&[u8]]) -> (Vec<(u32, bool)>, u64) {
    let (mut lines, mut inside, mut policy) = (Lines::default(), Inside::default(), HurryUp::new(vec![1, 2, 3], 0.1));
    let (mut events, mut ignored) = (Vec::new(), 0);
    for part in parts {
        ignored += lines.feed(part, |line| {
            let Some(line) = parse(line) else { return };
            if let Ok(Some(event)) = inside.take(line.thread.unwrap_or(PROCESS), &line, 1.0) {
                events.push((event.thread, event.entered));
                policy.see(&[event]);
                assert_eq!(policy.clock(event.thread, 1.0), if event.entered { 2 } else { 1 });
            }
        });
    }
    (events, ignored)
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let whole = events(&[data]);
    assert_eq!(whole, events(&data.chunks(3).collect::<Vec<_>>()), "how the bytes are cut changes nothing");
    if let Some(parameters) = std::str::from_utf8(data).ok().and_then(|text| text.parse::<Parameters>().ok()) {
        assert_eq!(parameters.to_string().parse(), Ok(parameters.clone()));
        assert!((50..=1000).contains(&parameters.period_ms) && parameters.lever_values().iter().all(|value| *value > 0));
    }
});
