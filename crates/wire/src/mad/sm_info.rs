//! What subnet managers tell each other (IBTA vol1 14.2.5.13).

use crate::layout::{codes, layout};

codes! {
    /// State of a subnet manager.
    SmState(u8) {
        /// Does not take part.
        NOT_ACTIVE = 0, "not active";
        /// Looks for others.
        DISCOVERING = 1, "discovering";
        /// Watches the master.
        STANDBY = 2, "standby";
        /// Manages the subnet.
        MASTER = 3, "master";
    }
}

layout! {
    /// A subnet manager.
    SmInfo, SmInfoView, 21 {
        /// GUID of its port.
        guid: u64 = 0, 64;
        /// Key that subnet managers share.
        sm_key: u64 = 64, 64;
        /// Counts as long as it works.
        activity: u32 = 128, 32;
        /// The highest manages the subnet.
        priority: u8 = 160, 4;
        /// State.
        state: SmState = 164, 4;
    }
}
