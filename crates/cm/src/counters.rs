//! Counters of the manager: what it did, refused and dropped.

/// Counts events by name.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of a manager.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// Every counter with its name.
            pub fn each(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

counters! {
    /// Messages received.
    received,
    /// Messages sent, retransmissions included.
    sent,
    /// Messages retransmitted, because the peer did not answer or sent a duplicate.
    repeated,
    /// Duplicates received; the manager answers them as it did before, or not at all.
    duplicate,
    /// Dropped: shorter than a management datagram.
    drop_truncated,
    /// Dropped: of another class, version or method.
    drop_not_cm,
    /// Dropped: an attribute that communication management does not have.
    drop_unknown_attribute,
    /// Dropped: names a connection that does not exist.
    drop_unknown_connection,
    /// Dropped: names a connection with another peer.
    drop_wrong_peer,
    /// Dropped: not expected in the state of the connection.
    drop_unexpected,
    /// Dropped: DREQ that names another queue pair than that of the connection.
    drop_wrong_qp,
    /// Dropped: a request when too many wait already, and none can make room.
    drop_half_open_full,
    /// Accepted requests that were not confirmed and made room for others.
    half_open_evicted,
    /// Not sent: further messages to an address that has never answered.
    answers_withheld,
    /// Dropped: a request for a connection when the backlog of the listener is full.
    drop_backlog_full,
    /// Refused: no listener for the service.
    refused_no_listener,
    /// Refused: a request for a datagram service when the backlog of the listener is full.
    refused_backlog,
    /// Refused: the parameters of the request are invalid or not supported.
    refused_invalid,
    /// Refused: the queue pair of the peer is in use.
    refused_stale,
    /// Peers asked whether they still have a connection, because a message in their name uses its
    /// queue pair for another.
    stale_asked,
    /// Connections ended because the peer, asked, does not have them any more.
    stale_ended,
    /// Not sent: the rate limit on answers to messages that belong to no connection.
    drop_answer_rate,
    /// Not sent: the queue of datagrams to send is full.
    drop_queue_full,
    /// Dropped before their time: connections in time-wait and final answers beyond
    /// `max_remembered`.
    forgotten_early,
}
