//! File descriptors: how many this process may have, and for how many connections they suffice.

use crate::limits::{CONNECTION_DESCRIPTORS, FEWEST_CONNECTIONS, OTHER_DESCRIPTORS};

/// Raises the soft limit of this process to the hard one.
pub(crate) fn raise_limit() -> std::io::Result<()> {
    rlimit::increase_nofile_limit(u64::MAX).map(drop)
}

/// Connections that this process has file descriptors for.
pub(crate) fn connections() -> usize {
    #[cfg(unix)]
    let limit = rlimit::Resource::NOFILE.get_soft().unwrap_or(u64::MAX);
    #[cfg(not(unix))]
    let limit = u64::MAX;
    connections_of(usize::try_from(limit).unwrap_or(usize::MAX))
}

/// Half of them are left for files and for links to other servers.
fn connections_of(limit: usize) -> usize {
    (limit.saturating_sub(OTHER_DESCRIPTORS) / 2 / CONNECTION_DESCRIPTORS).max(FEWEST_CONNECTIONS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_room_for_other_files() {
        assert_eq!([0, 256, 1024, 4096].map(connections_of), [8, 26, 122, 506]);
        assert!(connections_of(1 << 16) > 512);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_connection_has_so_many() {
        let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        // Other tests open files meanwhile: the least of some tries counts.
        let most = (0..20)
            .map(|_| {
                let before = open();
                let loops: Vec<_> = (0..8).map(|_| crate::conn::runtime().unwrap()).collect();
                let more = open().saturating_sub(before);
                drop(loops);
                more
            })
            .min();
        assert!(most.unwrap() <= 8 * (CONNECTION_DESCRIPTORS - 1), "{most:?} descriptors of 8 event loops");
    }
}
