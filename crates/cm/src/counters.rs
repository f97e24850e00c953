//! What the manager did, and what it dropped.

/// Counts events by name.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What a manager did so far.
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
    /// Messages sent, repetitions included.
    sent,
    /// Messages sent again because the peer did not answer.
    repeated,
    /// Messages that were received before and answered as before, or not at all.
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
    /// Dropped: makes no sense in the state of the connection.
    drop_unexpected,
    /// Dropped: a request when too many wait already.
    drop_half_open_full,
    /// Refused: no listener for the service.
    refused_no_listener,
    /// Refused: more requests wait than the listener wants.
    refused_backlog,
    /// Refused: the request is one that we cannot grant.
    refused_invalid,
    /// Refused: the queue pair of the peer is in use.
    refused_stale,
    /// Not sent: more answers to strangers than allowed.
    drop_answer_rate,
    /// Not sent: too much waits to be sent.
    drop_queue_full,
    /// Forgotten early: more connections in time-wait than allowed.
    forgotten_early,
}
