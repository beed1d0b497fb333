//! `batch.cores`: on how many cores the batch jobs beside the web server may run: the cpuset of their cgroup.

use super::{Knob, Parts, cpu_cores};

/// Makes the knob.
pub fn make(parts: &Parts<'_>) -> Box<dyn Knob> {
    Box::new(cpu_cores::batch_cores(parts.system.cgroup.clone(), parts.settings.batch.cgroup.clone()))
}
