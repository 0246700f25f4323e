//! File descriptors: how many this process may have, and for how many connections they suffice.

use crate::limits::{CONNECTION_DESCRIPTORS, FEWEST_CONNECTIONS, FEWEST_LINKS, LINKS, OTHER_DESCRIPTORS};

/// Raises the soft limit of this process to the hard one.
pub(crate) fn raise_limit() -> std::io::Result<()> {
    rlimit::increase_nofile_limit(u64::MAX).map(drop)
}

/// Connections that this process has file descriptors for.
pub(crate) fn connections() -> usize {
    connections_of(limit())
}

/// Links to other servers that it has file descriptors for, at most [`LINKS`].
pub(crate) fn links() -> usize {
    links_of(limit())
}

fn limit() -> usize {
    #[cfg(unix)]
    let limit = rlimit::Resource::NOFILE.get_soft().unwrap_or(u64::MAX);
    #[cfg(not(unix))]
    let limit = u64::MAX;
    usize::try_from(limit).unwrap_or(usize::MAX)
}

/// Half of them are for connections.
fn connections_of(limit: usize) -> usize {
    (limit.saturating_sub(OTHER_DESCRIPTORS) / 2 / CONNECTION_DESCRIPTORS).max(FEWEST_CONNECTIONS)
}

/// A fourth is for links, and a fourth for files.
fn links_of(limit: usize) -> usize {
    (limit.saturating_sub(OTHER_DESCRIPTORS) / 4 / CONNECTION_DESCRIPTORS).clamp(FEWEST_LINKS, LINKS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::BLOB_FILES;

    #[test]
    fn connections_and_links_leave_room_for_other_files() {
        for limit in [1024, 4096, 1 << 20] {
            let sockets = (connections_of(limit).min(512) + links_of(limit)) * CONNECTION_DESCRIPTORS;
            assert!(sockets + BLOB_FILES + OTHER_DESCRIPTORS <= limit, "{sockets} of {limit}");
        }
        assert_eq!([0, 1024, 4096, 1 << 20].map(links_of), [4, 61, 253, 256]);
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
