//! What a manager is made with.

/// Configuration. The defaults are those of Linux.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// Identifiers and first PSNs follow from it: the owner draws it from the operating system,
    /// tests fix it.
    pub seed: u64,
    /// Upper eight bits of every local identifier, so that several managers can share one queue
    /// pair 1 and each finds its own messages; random if absent.
    pub id_prefix: Option<u8>,
    /// GUID of the adapter, as peers are told.
    pub ca_guid: u64,
    /// How long the adapter may delay an acknowledgement, as a code.
    pub ack_delay: u8,
    /// How long either side may take to answer, as a code.
    pub response_timeout: u8,
    /// How long a packet may be on its way, as a code.
    pub packet_life_time: u8,
    /// How often a message is repeated before the peer counts as unreachable.
    pub max_retries: u8,
    /// After which time a message is repeated for the first time, without that counting; never
    /// before its time, as with Linux, if it is zero.
    pub probe_ns: u64,
    /// How much time a consumer that thinks is given, as a code.
    pub mra_timeout: u8,
    /// Requests of peers that are not established yet; more are ignored until there is room.
    pub max_half_open: usize,
    /// Connections in time-wait and answers that are remembered for duplicates; the oldest are
    /// forgotten when there are more.
    pub max_remembered: usize,
    /// How long a request waits for a listener before it is refused. Linux refuses at once.
    pub patience_ns: u64,
    /// Requests that wait for a listener; more are refused at once.
    pub max_early: usize,
    /// Answers per second to messages that belong to no connection; more are not sent.
    pub answers_per_second: u32,
    /// Datagrams that wait to be sent; more count as lost.
    pub max_queued: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            seed: 0,
            id_prefix: None,
            ca_guid: 0,
            ack_delay: 15,
            response_timeout: 20,
            packet_life_time: 18,
            max_retries: 15,
            probe_ns: 0,
            mra_timeout: 24,
            max_half_open: 8192,
            max_remembered: 16_384,
            patience_ns: 0,
            max_early: 64,
            answers_per_second: 10_000,
            max_queued: 65_536,
        }
    }
}
