//! Diffie-Hellman in the groups of RFC 7919, whose generator is 2.

use crypto_bigint::modular::{BoxedMontyForm, BoxedMontyParams};
use crypto_bigint::{BoxedUint, Odd};

/// Bytes of a private exponent: more than twice the strength of the greatest group.
pub(super) const EXPONENT: usize = 64;

/// A group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Group {
    /// No exchange: the challenge is used as it is.
    Null,
    Ffdhe2048,
    Ffdhe3072,
    Ffdhe4096,
    Ffdhe6144,
    Ffdhe8192,
}

impl Group {
    /// All of them, in the order in which a controller prefers them: the first that a host offers
    /// is used. All but the last are strong enough; shorter ones take less time.
    pub(super) const ALL: [Self; 6] = [
        Self::Ffdhe2048,
        Self::Ffdhe3072,
        Self::Ffdhe4096,
        Self::Ffdhe6144,
        Self::Ffdhe8192,
        Self::Null,
    ];

    pub(super) fn of(id: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|group| group.id() == id)
    }

    /// Its number on the wire.
    pub(super) fn id(self) -> u8 {
        match self {
            Self::Null => 0,
            Self::Ffdhe2048 => 1,
            Self::Ffdhe3072 => 2,
            Self::Ffdhe4096 => 3,
            Self::Ffdhe6144 => 4,
            Self::Ffdhe8192 => 5,
        }
    }

    fn prime(self) -> &'static str {
        match self {
            Self::Null => "",
            Self::Ffdhe2048 => FFDHE2048,
            Self::Ffdhe3072 => FFDHE3072,
            Self::Ffdhe4096 => FFDHE4096,
            Self::Ffdhe6144 => FFDHE6144,
            Self::Ffdhe8192 => FFDHE8192,
        }
    }

    /// Bytes of a public value.
    pub(super) fn len(self) -> usize {
        self.prime().len() / 2
    }

    fn params(self) -> Option<(BoxedUint, BoxedMontyParams)> {
        let prime = BoxedUint::from_str_radix_vartime(self.prime(), 16).ok()?;
        let odd = Option::<Odd<BoxedUint>>::from(Odd::new(prime.clone()))?;
        Some((prime, BoxedMontyParams::new(odd)))
    }

    fn power(self, base: &[u8], exponent: &[u8; EXPONENT]) -> Option<Vec<u8>> {
        let (_, params) = self.params()?;
        let bits = u32::try_from(self.len()).ok()? * 8;
        let base = BoxedUint::from_be_slice(base, bits).ok()?;
        let exponent = BoxedUint::from_be_slice(exponent, EXPONENT as u32 * 8).ok()?;
        let power = BoxedMontyForm::new(base, &params).pow(&exponent);
        Some(power.retrieve().to_be_bytes().to_vec())
    }

    /// The public value of an exponent: nothing, if there is no exchange.
    pub(super) fn public(self, exponent: &[u8; EXPONENT]) -> Vec<u8> {
        let mut two = vec![0; self.len()];
        two.last_mut().into_iter().for_each(|byte| *byte = 2);
        self.power(&two, exponent).unwrap_or_default()
    }

    /// The secret that both ends have in common; none if the public value of the peer is not one.
    pub(super) fn shared(self, peer: &[u8], exponent: &[u8; EXPONENT]) -> Option<Vec<u8>> {
        if self == Self::Null {
            return peer.is_empty().then(Vec::new);
        }
        let (prime, _) = self.params()?;
        let bits = u32::try_from(self.len()).ok()? * 8;
        let value = BoxedUint::from_be_slice(peer, bits).ok()?;
        let one = BoxedUint::one_with_precision(bits);
        // 0, 1 and -1 would make the secret known, and greater ones are of no group.
        let is_good = value > one && value < prime.wrapping_sub(&one);
        if is_good && peer.len() == self.len() { self.power(peer, exponent) } else { None }
    }
}

/// The prime of ffdhe2048.
const FFDHE2048: &str = "\
ffffffffffffffffadf85458a2bb4a9aafdc5620273d3cf1d8b9c583ce2d3695a9e13641146433fbcc939dce249b\
3ef97d2fe363630c75d8f681b202aec4617ad3df1ed5d5fd65612433f51f5f066ed0856365553ded1af3b557135e\
7f57c935984f0c70e0e68b77e2a689daf3efe8721df158a136ade73530acca4f483a797abc0ab182b324fb61d108\
a94bb2c8e3fbb96adab760d7f4681d4f42a3de394df4ae56ede76372bb190b07a7c8ee0a6d709e02fce1cdf7e2ec\
c03404cd28342f619172fe9ce98583ff8e4f1232eef28183c3fe3b1b4c6fad733bb5fcbc2ec22005c58ef1837d16\
83b2c6f34a26c1b2effa886b423861285c97ffffffffffffffff";

/// The prime of ffdhe3072.
const FFDHE3072: &str = "\
ffffffffffffffffadf85458a2bb4a9aafdc5620273d3cf1d8b9c583ce2d3695a9e13641146433fbcc939dce249b\
3ef97d2fe363630c75d8f681b202aec4617ad3df1ed5d5fd65612433f51f5f066ed0856365553ded1af3b557135e\
7f57c935984f0c70e0e68b77e2a689daf3efe8721df158a136ade73530acca4f483a797abc0ab182b324fb61d108\
a94bb2c8e3fbb96adab760d7f4681d4f42a3de394df4ae56ede76372bb190b07a7c8ee0a6d709e02fce1cdf7e2ec\
c03404cd28342f619172fe9ce98583ff8e4f1232eef28183c3fe3b1b4c6fad733bb5fcbc2ec22005c58ef1837d16\
83b2c6f34a26c1b2effa886b4238611fcfdcde355b3b6519035bbc34f4def99c023861b46fc9d6e6c9077ad91d26\
91f7f7ee598cb0fac186d91caefe130985139270b4130c93bc437944f4fd4452e2d74dd364f2e21e71f54bff5cae\
82ab9c9df69ee86d2bc522363a0dabc521979b0deada1dbf9a42d5c4484e0abcd06bfa53ddef3c1b20ee3fd59d7c\
25e41d2b66c62e37ffffffffffffffff";

/// The prime of ffdhe4096.
const FFDHE4096: &str = "\
ffffffffffffffffadf85458a2bb4a9aafdc5620273d3cf1d8b9c583ce2d3695a9e13641146433fbcc939dce249b\
3ef97d2fe363630c75d8f681b202aec4617ad3df1ed5d5fd65612433f51f5f066ed0856365553ded1af3b557135e\
7f57c935984f0c70e0e68b77e2a689daf3efe8721df158a136ade73530acca4f483a797abc0ab182b324fb61d108\
a94bb2c8e3fbb96adab760d7f4681d4f42a3de394df4ae56ede76372bb190b07a7c8ee0a6d709e02fce1cdf7e2ec\
c03404cd28342f619172fe9ce98583ff8e4f1232eef28183c3fe3b1b4c6fad733bb5fcbc2ec22005c58ef1837d16\
83b2c6f34a26c1b2effa886b4238611fcfdcde355b3b6519035bbc34f4def99c023861b46fc9d6e6c9077ad91d26\
91f7f7ee598cb0fac186d91caefe130985139270b4130c93bc437944f4fd4452e2d74dd364f2e21e71f54bff5cae\
82ab9c9df69ee86d2bc522363a0dabc521979b0deada1dbf9a42d5c4484e0abcd06bfa53ddef3c1b20ee3fd59d7c\
25e41d2b669e1ef16e6f52c3164df4fb7930e9e4e58857b6ac7d5f42d69f6d187763cf1d5503400487f55ba57e31\
cc7a7135c886efb4318aed6a1e012d9e6832a907600a918130c46dc778f971ad0038092999a333cb8b7a1a1db93d\
7140003c2a4ecea9f98d0acc0a8291cdcec97dcf8ec9b55a7f88a46b4db5a851f44182e1c68a007e5e655f6affff\
ffffffffffff";

/// The prime of ffdhe6144.
const FFDHE6144: &str = "\
ffffffffffffffffadf85458a2bb4a9aafdc5620273d3cf1d8b9c583ce2d3695a9e13641146433fbcc939dce249b\
3ef97d2fe363630c75d8f681b202aec4617ad3df1ed5d5fd65612433f51f5f066ed0856365553ded1af3b557135e\
7f57c935984f0c70e0e68b77e2a689daf3efe8721df158a136ade73530acca4f483a797abc0ab182b324fb61d108\
a94bb2c8e3fbb96adab760d7f4681d4f42a3de394df4ae56ede76372bb190b07a7c8ee0a6d709e02fce1cdf7e2ec\
c03404cd28342f619172fe9ce98583ff8e4f1232eef28183c3fe3b1b4c6fad733bb5fcbc2ec22005c58ef1837d16\
83b2c6f34a26c1b2effa886b4238611fcfdcde355b3b6519035bbc34f4def99c023861b46fc9d6e6c9077ad91d26\
91f7f7ee598cb0fac186d91caefe130985139270b4130c93bc437944f4fd4452e2d74dd364f2e21e71f54bff5cae\
82ab9c9df69ee86d2bc522363a0dabc521979b0deada1dbf9a42d5c4484e0abcd06bfa53ddef3c1b20ee3fd59d7c\
25e41d2b669e1ef16e6f52c3164df4fb7930e9e4e58857b6ac7d5f42d69f6d187763cf1d5503400487f55ba57e31\
cc7a7135c886efb4318aed6a1e012d9e6832a907600a918130c46dc778f971ad0038092999a333cb8b7a1a1db93d\
7140003c2a4ecea9f98d0acc0a8291cdcec97dcf8ec9b55a7f88a46b4db5a851f44182e1c68a007e5e0dd9020bfd\
64b645036c7a4e677d2c38532a3a23ba4442caf53ea63bb454329b7624c8917bdd64b1c0fd4cb38e8c334c701c3a\
cdad0657fccfec719b1f5c3e4e46041f388147fb4cfdb477a52471f7a9a96910b855322edb6340d8a00ef0923505\
11e30abec1fff9e3a26e7fb29f8c183023c3587e38da0077d9b4763e4e4b94b2bbc194c6651e77caf992eeaac023\
2a281bf6b3a739c1226116820ae8db5847a67cbef9c9091b462d538cd72b03746ae77f5e62292c311562a846505d\
c82db854338ae49f5235c95b91178ccf2dd5cacef403ec9d1810c6272b045b3b71f9dc6b80d63fdd4a8e9adb1e69\
62a69526d43161c1a41d570d7938dad4a40e329cd0e40e65ffffffffffffffff";

/// The prime of ffdhe8192.
const FFDHE8192: &str = "\
ffffffffffffffffadf85458a2bb4a9aafdc5620273d3cf1d8b9c583ce2d3695a9e13641146433fbcc939dce249b\
3ef97d2fe363630c75d8f681b202aec4617ad3df1ed5d5fd65612433f51f5f066ed0856365553ded1af3b557135e\
7f57c935984f0c70e0e68b77e2a689daf3efe8721df158a136ade73530acca4f483a797abc0ab182b324fb61d108\
a94bb2c8e3fbb96adab760d7f4681d4f42a3de394df4ae56ede76372bb190b07a7c8ee0a6d709e02fce1cdf7e2ec\
c03404cd28342f619172fe9ce98583ff8e4f1232eef28183c3fe3b1b4c6fad733bb5fcbc2ec22005c58ef1837d16\
83b2c6f34a26c1b2effa886b4238611fcfdcde355b3b6519035bbc34f4def99c023861b46fc9d6e6c9077ad91d26\
91f7f7ee598cb0fac186d91caefe130985139270b4130c93bc437944f4fd4452e2d74dd364f2e21e71f54bff5cae\
82ab9c9df69ee86d2bc522363a0dabc521979b0deada1dbf9a42d5c4484e0abcd06bfa53ddef3c1b20ee3fd59d7c\
25e41d2b669e1ef16e6f52c3164df4fb7930e9e4e58857b6ac7d5f42d69f6d187763cf1d5503400487f55ba57e31\
cc7a7135c886efb4318aed6a1e012d9e6832a907600a918130c46dc778f971ad0038092999a333cb8b7a1a1db93d\
7140003c2a4ecea9f98d0acc0a8291cdcec97dcf8ec9b55a7f88a46b4db5a851f44182e1c68a007e5e0dd9020bfd\
64b645036c7a4e677d2c38532a3a23ba4442caf53ea63bb454329b7624c8917bdd64b1c0fd4cb38e8c334c701c3a\
cdad0657fccfec719b1f5c3e4e46041f388147fb4cfdb477a52471f7a9a96910b855322edb6340d8a00ef0923505\
11e30abec1fff9e3a26e7fb29f8c183023c3587e38da0077d9b4763e4e4b94b2bbc194c6651e77caf992eeaac023\
2a281bf6b3a739c1226116820ae8db5847a67cbef9c9091b462d538cd72b03746ae77f5e62292c311562a846505d\
c82db854338ae49f5235c95b91178ccf2dd5cacef403ec9d1810c6272b045b3b71f9dc6b80d63fdd4a8e9adb1e69\
62a69526d43161c1a41d570d7938dad4a40e329ccff46aaa36ad004cf600c8381e425a31d951ae64fdb23fcec950\
9d43687feb69edd1cc5e0b8cc3bdf64b10ef86b63142a3ab8829555b2f747c932665cb2c0f1cc01bd70229388839\
d2af05e454504ac78b7582822846c0ba35c35f5c59160cc046fd8251541fc68c9c86b022bb7099876a460e7451a8\
a93109703fee1c217e6c3826e52c51aa691e0e423cfc99e9e31650c1217b624816cdad9a95f9d5b8019488d9c0a0\
a1fe3075a577e23183f81d4a3f2fa4571efc8ce0ba8a4fe8b6855dfe72b0a66eded2fbabfbe58a30fafabe1c5d71\
a87e2f741ef8c1fe86fea6bbfde530677f0d97d11d49f7a8443d0822e506a9f4614e011e2a94838ff88cd68c8bb7\
c5c6424cffffffffffffffff";

#[cfg(test)]
mod tests {
    use crypto_bigint::Resize as _;

    use super::*;

    #[test]
    fn both_ends_have_the_same_secret() {
        for group in Group::ALL {
            let (a, b) = ([0x5a; EXPONENT], [0x17; EXPONENT]);
            let (of_a, of_b) = (group.public(&a), group.public(&b));
            assert_eq!(of_a.len(), group.len());
            let shared = group.shared(&of_b, &a).expect("a value of the group");
            assert_eq!(Some(shared), group.shared(&of_a, &b));
            assert_eq!(Group::of(group.id()), Some(group));
        }
    }

    #[test]
    fn values_that_make_the_secret_known_are_refused() {
        let group = Group::Ffdhe2048;
        let len = group.len();
        let small = |n: u8| [vec![0; len - 1], vec![n]].concat();
        let prime = group.params().expect("a prime").0;
        let minus_one = prime.wrapping_sub(BoxedUint::one_with_precision(2048));
        let bad = [small(0), small(1), minus_one.to_be_bytes().to_vec(), vec![0xff; len]];
        for value in bad {
            assert_eq!(group.shared(&value, &[3; EXPONENT]), None);
        }
        assert_eq!(group.shared(&[2], &[3; EXPONENT]), None);
        assert_eq!(Group::Null.shared(&[2], &[3; EXPONENT]), None);
        assert!(group.shared(&small(2), &[3; EXPONENT]).is_some());
    }

    /// RFC 7919, appendix A: primes are made of the digits of e, and of an offset.
    #[test]
    fn primes_are_those_of_the_formula() {
        let offsets = [
            (Group::Ffdhe2048, 560_316_u64),
            (Group::Ffdhe3072, 2_625_351),
            (Group::Ffdhe4096, 5_736_041),
            (Group::Ffdhe6144, 15_705_020),
            (Group::Ffdhe8192, 10_965_728),
        ];
        for (group, offset) in offsets {
            let bits = group.len() as u32 * 8;
            let wide = bits + 128;
            // e, as the sum of the reciprocals of factorials, with bits - 130 places and 128 more.
            let mut term = BoxedUint::one_with_precision(wide).shl_vartime(bits - 2).expect("room");
            let mut e = BoxedUint::zero_with_precision(wide);
            for k in 1_u64.. {
                if bool::from(term.is_zero()) {
                    break;
                }
                e = e.wrapping_add(&term);
                let k = Option::from(crypto_bigint::NonZero::new(BoxedUint::from(k).resize(wide)));
                term = term.wrapping_div(&k.expect("not zero"));
            }
            let e = e
                .shr_vartime(128)
                .expect("room")
                .wrapping_add(BoxedUint::from(offset).resize(wide));
            let one = BoxedUint::one_with_precision(wide);
            let power = |n: u32| one.shl_vartime(n).expect("room");
            let prime = power(bits)
                .wrapping_sub(power(bits - 64))
                .wrapping_add(e.shl_vartime(64).expect("room"))
                .wrapping_sub(&one);
            let found = group.params().expect("a prime").0.resize(wide);
            assert_eq!(found, prime, "{group:?}");
        }
    }
}
