//! Whether somebody listens on a TCP port.

use std::fs;

/// Whether a TCP port is listened on in the namespace of this process.
pub(super) fn is_listened_on(port: u16) -> bool {
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        fs::read_to_string(table).is_ok_and(|table| table.lines().any(|line| listens(line, port)))
    })
}

/// A line has a number, the local address, the remote one and a state, of which 0A is LISTEN.
fn listens(line: &str, port: u16) -> bool {
    let words: Vec<&str> = line.split_whitespace().take(4).collect();
    matches!(*words, [_, local, _, "0A"] if local.ends_with(&format!(":{port:04X}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listeners_of_that_port_count() {
        let line = "   0: 00000000:4853 00000000:0000 0A 00000000:00000000 00:00000000";
        assert!(listens(line, 0x4853));
        assert!(!listens(line, 0x4854));
        assert!(!listens(&line.replace(" 0A ", " 01 "), 0x4853));
        assert!(!listens("  sl  local_address rem_address   st tx_queue rx_queue tr", 0));
    }
}
