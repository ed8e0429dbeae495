//! What a process uses, from the kernel's books.

use std::fs;

/// Processor time of all threads of a process so far, in nanoseconds. Says more than time on a machine that
/// others use, too: it is the same however long somebody has to wait for a core.
pub fn processor_time(pid: u32) -> f64 {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let time = |folder: fs::DirEntry| {
        let text = fs::read_to_string(folder.path().join("schedstat")).unwrap_or_default();
        text.split(' ').next().and_then(|time| time.parse::<f64>().ok()).unwrap_or(0.0)
    };
    threads.map(time).sum()
}

/// This process's memory in bytes.
pub fn memory() -> f64 {
    status("VmRSS:").unwrap_or(f64::NAN) * 1024.0
}

/// How many threads this process has.
pub fn threads() -> f64 {
    status("Threads:").unwrap_or(f64::NAN)
}

fn status(field: &str) -> Option<f64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    line.split_whitespace().next()?.parse().ok()
}
