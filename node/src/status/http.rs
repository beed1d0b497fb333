//! One GET request over HTTP.

use std::io::Read as _;
use std::time::Duration;

use super::{LONGEST_PAGE, PageError, PageErrorCause};

/// The body of a page; redirects are not followed. `within` counts in whole seconds.
///
/// # Errors
/// When there is no answer in time, or one of another status than 200.
pub fn get(url: &str, within: Duration) -> Result<String, PageError> {
    let failed = |cause| PageError { place: url.to_owned(), cause };
    let broken = |error: &dyn std::fmt::Display| failed(PageErrorCause::Connection(error.to_string()));
    let answer = minreq::get(url)
        .with_timeout(within.as_secs())
        .with_follow_redirects(false)
        .with_max_headers_size(16 * 1024)
        .with_max_status_line_length(1024)
        .send_lazy()
        .map_err(|error| broken(&error))?;
    if answer.status_code != 200 {
        return Err(failed(PageErrorCause::Status(format!("{} {}", answer.status_code, answer.reason_phrase))));
    }
    let mut page = Vec::new();
    answer.take(LONGEST_PAGE as u64 + 1).read_to_end(&mut page).map_err(|error| broken(&error))?;
    if page.len() > LONGEST_PAGE {
        return Err(failed(PageErrorCause::TooLong));
    }
    Ok(String::from_utf8_lossy(&page).into_owned())
}
