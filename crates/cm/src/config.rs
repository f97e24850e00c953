//! Configuration of a manager.

/// Configuration. The defaults are those of Linux.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// Seed of communication IDs and first PSNs. The owner gets it from the random numbers of the
    /// operating system; tests fix it.
    pub seed: u64,
    /// Upper eight bits of every local communication ID, so that several managers can share one
    /// queue pair 1 and each recognises its own messages; random if absent.
    pub id_prefix: Option<u8>,
    /// GUID of the adapter, as REQ and REP tell the peer.
    pub ca_guid: u64,
    /// How long the adapter may delay an acknowledgement, as a code.
    pub ack_delay: u8,
    /// How long either side may take to answer, as a code.
    pub response_timeout: u8,
    /// Packet life time: how long a packet may be in the network, as a code.
    pub packet_life_time: u8,
    /// Retries of a message before the manager reports the peer as unreachable.
    pub max_retries: u8,
    /// Time before the first probe, a retransmission before the regular timeout that does not count
    /// as a retry. Zero, as on Linux, means no probes.
    pub probe_ns: u64,
    /// How much time an MRA asks for while the consumer decides, as a code.
    pub mra_timeout: u8,
    /// Most requests of peers that are not established yet. Further ones take the place of the
    /// oldest that was answered in vain, or the manager leaves them to the retries of the peer.
    pub max_half_open: usize,
    /// The same for one listener, so that a flood of requests for one leaves room for others.
    pub max_half_open_per_listener: usize,
    /// The same for one address, unless it has an established connection.
    pub max_half_open_per_source: usize,
    /// Most messages that the manager sends because of one request, unasked, to an address from
    /// which no answer has come; it may be that of a victim. Duplicates of the request are answered
    /// one by one.
    pub max_answers: u8,
    /// Most connections in time-wait and final answers kept for duplicates; beyond that, the
    /// manager drops the oldest.
    pub max_remembered: usize,
    /// How long a request waits for a listener before the manager refuses it. Linux refuses at
    /// once.
    pub patience_ns: u64,
    /// Most requests that wait for a listener; the manager refuses further ones at once.
    pub max_early: usize,
    /// Most answers per second to messages that belong to no connection; the manager does not send
    /// further ones.
    pub answers_per_second: u32,
    /// Most datagrams that wait to be sent; the manager drops further ones, as if the network had
    /// lost them.
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
            max_half_open_per_listener: 6144,
            max_half_open_per_source: 1024,
            max_answers: 3,
            max_remembered: 16_384,
            patience_ns: 0,
            max_early: 64,
            answers_per_second: 10_000,
            max_queued: 65_536,
        }
    }
}
