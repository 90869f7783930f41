//! Random bytes by the system call itself. The crate getrandom looks for a function of the C library at run time. In a
//! static program it finds none and opens a device instead, which a locked down process cannot.

use rustix::{
    io::{self, Errno},
    rand::{GetRandomFlags, getrandom},
};

/// Fills a buffer with random bytes.
///
/// # Errors
/// If the kernel does not have the system call.
pub(crate) fn fill(mut bytes: &mut [u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match getrandom(&mut *bytes, GetRandomFlags::empty()) {
            Ok(filled) => bytes = &mut bytes[filled..],
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_a_long_buffer_is_filled_anew() {
        let (mut one, mut other) = (vec![0; 100_000], vec![0; 100_000]);
        fill(&mut one).expect("filled");
        fill(&mut other).expect("filled");
        assert_ne!(one, other);
        assert!(
            one.chunks(64).chain(other.chunks(64)).all(|chunk| chunk.iter().any(|byte| *byte != 0))
        );
    }
}
