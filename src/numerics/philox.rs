//! The random numbers of dropout and of whatever else needs some: Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as
//! easy as 1, 2, 3", 2011).

/// Four words for a counter and a key, lowest words first.
#[inline(always)]
pub fn philox4x32(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let a = u64::from(counter[0]) * 0xD251_1F53;
        let b = u64::from(counter[2]) * 0xCD9E_8D57;
        counter = [(b >> 32) as u32 ^ counter[1] ^ key[0], b as u32, (a >> 32) as u32 ^ counter[3] ^ key[1], a as u32];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    counter
}

/// The four words of elements `4 * group` to `4 * group + 3`: key = seed, counter = (offset + group, stream).
#[inline(always)]
pub fn random_words(seed: u64, offset: u64, stream: u64, group: u64) -> [u32; 4] {
    let at = offset.wrapping_add(group);
    philox4x32([at as u32, (at >> 32) as u32, stream as u32, (stream >> 32) as u32], [seed as u32, (seed >> 32) as u32])
}

/// An element is kept if its word is not below this: `round(p * 2^32)`, which for p = 1 no word reaches.
pub fn drop_threshold(p: f64) -> u64 {
    (p * 4_294_967_296.0).round() as u64
}
