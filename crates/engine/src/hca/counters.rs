//! Statistics, under the names that Linux drivers give them.

use feroce_wire::iwarp::terminate::Cause;

/// Declares a struct of counters with an iterator over their names and values.
macro_rules! counters {
    ($(#[$doc:meta])* $name:ident { $($(#[$fdoc:meta])* $field:ident,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct $name {
            $($(#[$fdoc])* pub $field: u64,)*
        }

        impl $name {
            /// Every counter by name.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($field), self.$field)),*].into_iter()
            }

            /// Adds the values of another.
            pub fn add(&mut self, other: &Self) {
                $(self.$field += other.$field;)*
            }

            /// Counters with the values that `value_of` gives them.
            pub fn by_name(value_of: impl Fn(&'static str) -> u64) -> Self {
                Self { $($field: value_of(stringify!($field)),)* }
            }
        }
    };
}

counters! {
    /// What the engine did. Names follow the `hw_counters` of the Linux Soft-RoCE and mlx5
    /// drivers where one of them counts the same thing.
    Counters {
        /// Packets sent, those to ourselves included.
        sent_pkts,
        /// Bytes sent, transport headers included.
        sent_bytes,
        /// Packets received, those from ourselves included.
        rcvd_pkts,
        /// Bytes received, transport headers included.
        rcvd_bytes,
        /// Requests that had been executed before.
        duplicate_request,
        /// Requests that arrived out of sequence, before an earlier one.
        out_of_seq_request,
        /// Requests among these that were kept until the earlier one came.
        kept_after_gap,
        /// RNR NAKs received.
        rcvd_rnr_err,
        /// RNR NAKs sent.
        send_rnr_err,
        /// Sequence error NAKs received.
        rcvd_seq_err,
        /// Requests acknowledged together with a later one.
        ack_deferred,
        /// Work requests that failed because the peer did not answer.
        retry_exceeded_err,
        /// Work requests that failed because the peer never had a receive.
        retry_rnr_exceeded_err,
        /// Times the requester went back and retransmitted.
        completer_retry_err,
        /// Requests that failed before they were sent.
        send_err,
        /// Times the port went down.
        link_downed,
        /// Operations that a requester started.
        rdma_sends,
        /// Messages that a responder completed.
        rdma_recvs,
        /// Acknowledgement timeouts.
        local_ack_timeout_err,
        /// Acknowledgement timeouts that did not count as retries, because the peer process had
        /// not yet read the packets.
        excused_timeouts,
        /// Read responses or acknowledgements that showed an earlier response missing.
        implied_nak_seq_err,
        /// Sequence error NAKs sent.
        out_of_sequence,
        /// Messages that found no receive posted.
        out_of_buffer,
        /// Datagrams that found no receive posted.
        ud_out_of_buffer,
        /// Receives too small for their message.
        resp_local_length_error,
        /// Remote accesses that were refused here.
        resp_remote_access_errors,
        /// Malformed requests refused here.
        resp_remote_invalid_request,
        /// Requests the peer refused as malformed.
        req_remote_invalid_request,
        /// Requests the peer refused access to.
        req_remote_access_errors,
        /// Completions with an error, from send queues.
        req_cqe_error,
        /// Completions with an error, from receive queues.
        resp_cqe_error,
        /// Completions lost because their queue was full.
        cq_overrun,
        /// Packets that arrived with congestion experienced.
        np_ecn_marked_roce_packets,
        /// Congestion notifications sent.
        np_cnp_sent,
        /// Congestion notifications heeded.
        rp_cnp_handled,
        /// Congestion notifications for queue pairs without congestion control.
        rp_cnp_ignored,
        /// Retransmissions started early, from the measured round trip time.
        tail_probes,
        /// Packets sent again to request acknowledgements that no earlier packet requested.
        late_ack_requests,
        /// Packets that the engine delivered to itself.
        loopback_pkts,
    }
}

counters! {
    /// What one queue pair did. As requester it counts what its consumer asked for, READs included;
    /// as responder what it executed for the peer.
    QpCounters {
        /// Requests that the requester started.
        requests,
        /// Payload of these requests, in bytes.
        request_bytes,
        /// Requests among these that went by direct access, without a packet. The responder does
        /// not see them.
        direct_requests,
        /// Messages that the responder completed.
        served,
        /// Payload that the responder placed or was asked for, in bytes.
        served_bytes,
        /// Times the requester went back and retransmitted.
        retransmissions,
        /// RNR NAKs received.
        rnr_naks,
    }
}

/// Declares the ways in which streams of iWARP end, and which cause of a TERMINATE counts as which.
macro_rules! stream_ends {
    ($($(#[$doc:meta])* $field:ident = [$($cause:ident),*],)*) => {
        counters! {
            /// Streams of iWARP that ended otherwise than by an orderly close, by reason. One that
            /// begins with `iwarp_refused` was ended by this end, because of what the peer sent.
            StreamCounters { $($(#[$doc])* $field,)* }
        }

        impl StreamCounters {
            /// Counts a stream that this end refuses.
            pub(crate) fn refuse(&mut self, cause: Cause) {
                match cause {
                    $($(Cause::$cause => self.$field += 1,)*)*
                    _ => self.iwarp_refused_otherwise += 1,
                }
            }
        }
    };
}

stream_ends! {
    /// Wrong CRC.
    iwarp_refused_crc = [MPA_CRC],
    /// An FPDU that holds no DDP header.
    iwarp_refused_framing = [MPA_MARKERS],
    /// Another version of DDP or RDMAP.
    iwarp_refused_version = [TAGGED_VERSION, UNTAGGED_VERSION, OPERATION_VERSION],
    /// An operation that does not exist, or is out of place.
    iwarp_refused_opcode = [OPERATION_OPCODE],
    /// A queue number that does not exist.
    iwarp_refused_queue = [UNTAGGED_QUEUE],
    /// Another message number than the next.
    iwarp_refused_msn = [UNTAGGED_MSN],
    /// Another message offset than the next.
    iwarp_refused_offset = [UNTAGGED_MO],
    /// A message longer than its receive.
    iwarp_refused_too_long = [UNTAGGED_TOO_LONG],
    /// A SEND without a receive, or more READs than were agreed on.
    iwarp_refused_no_buffer = [UNTAGGED_NO_BUFFER],
    /// A key that does not exist.
    iwarp_refused_stag = [TAGGED_INVALID_STAG, PROTECTION_INVALID_STAG],
    /// A key of another protection domain or queue pair.
    iwarp_refused_not_of_stream = [TAGGED_NOT_OF_STREAM, PROTECTION_NOT_OF_STREAM],
    /// A range outside of its region.
    iwarp_refused_bounds = [TAGGED_BOUNDS, PROTECTION_BOUNDS],
    /// A range that passes the end of the address space.
    iwarp_refused_wrap = [TAGGED_WRAP, PROTECTION_WRAP],
    /// An atomic on memory that is not aligned to its eight bytes.
    iwarp_refused_alignment = [OPERATION_STREAM_CATASTROPHIC],
    /// An access without the right to it.
    iwarp_refused_access = [PROTECTION_ACCESS],
    /// A key that the peer may not invalidate.
    iwarp_refused_invalidate = [OPERATION_INVALIDATE],
    /// A receive whose memory is gone.
    iwarp_refused_receive = [DDP_LOCAL_CATASTROPHIC],
    /// For another reason.
    iwarp_refused_otherwise = [],
    /// Requests of this end that could not be executed.
    iwarp_failed_request = [RDMAP_LOCAL_CATASTROPHIC],
    /// The peer has sent a TERMINATE.
    iwarp_terminated_by_peer = [],
    /// The connection broke, or ended inside an FPDU.
    iwarp_cut = [],
    /// The rest of an FPDU has not arrived for long.
    iwarp_stalled = [],
}

impl QpCounters {
    /// A request was started.
    #[inline]
    pub(crate) fn start(&mut self, len: u32) {
        self.requests += 1;
        self.request_bytes += u64::from(len);
    }
}

/// Declares the reasons to drop a packet and a counter for each.
macro_rules! drops {
    ($($(#[$doc:meta])* $variant:ident => $field:ident,)*) => {
        /// Why a received packet was dropped.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Drop {
            $($(#[$doc])* $variant,)*
        }

        counters! {
            /// Dropped packets by reason.
            DropCounters { $($(#[$doc])* $field,)* }
        }

        impl DropCounters {
            /// Counts one packet.
            #[inline]
            pub fn count(&mut self, reason: Drop) {
                match reason { $(Drop::$variant => self.$field += 1,)* }
            }

            /// Packets dropped for any reason.
            pub fn total(&self) -> u64 {
                self.iter().map(|(_, n)| n).sum()
            }
        }
    };
}

drops! {
    /// Shorter than its headers.
    Truncated => drop_truncated,
    /// Reserved opcode, or one of another service than the queue pair's.
    BadOpcode => drop_bad_opcode,
    /// Transport version other than zero.
    BadVersion => drop_bad_version,
    /// More padding than payload, or a length that is not a multiple of four.
    BadPadding => drop_bad_padding,
    /// No queue pair has that number.
    UnknownQp => drop_unknown_qp,
    /// The queue pair is not in a state that receives.
    BadState => drop_bad_state,
    /// From or to an address that the queue pair is not connected with.
    BadAddress => drop_bad_address,
    /// The partition key does not match.
    BadPkey => drop_bad_pkey,
    /// The queue key does not match.
    BadQkey => drop_bad_qkey,
    /// An unreliable message lost its beginning or a part of it.
    BadSequence => drop_bad_sequence,
    /// After a gap that has been reported already.
    AfterGap => drop_after_gap,
    /// A duplicate of a request that the responder no longer remembers.
    StaleDuplicate => drop_stale_duplicate,
    /// An answer that belongs to no outstanding request.
    GhostResponse => drop_ghost_response,
    /// An answer after a missing one.
    ResponseGap => drop_response_gap,
    /// An unreliable message without a receive to take it.
    NoReceive => drop_no_receive,
    /// A datagram longer than its receive, or a packet longer than the path MTU.
    TooLong => drop_too_long,
    /// An unreliable request that memory protection refused.
    AccessDenied => drop_access_denied,
    /// A multicast group without members here.
    NoMember => drop_no_member,
    /// Its payload was with its sender, and could not be fetched.
    PayloadGone => drop_payload_gone,
    /// Answers held back by the rate limit.
    RateLimited => drop_rate_limited,
}
