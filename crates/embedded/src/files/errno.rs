//! Error numbers of file operations, as WASI defines them.

/// Declares the enum and its numbers.
macro_rules! errnos {
    ($($name:ident = $number:literal,)*) => {
        /// An error number of WASI preview 1.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u16)]
        pub(crate) enum Errno {
            $($name = $number,)*
        }
    };
}

errnos! {
    Acces = 2,
    Badf = 8,
    Exist = 20,
    Fault = 21,
    Fbig = 22,
    Ilseq = 25,
    Inval = 28,
    Io = 29,
    Isdir = 31,
    Loop = 32,
    Mfile = 33,
    Mlink = 34,
    Nametoolong = 37,
    Noent = 44,
    Nospc = 51,
    Nosys = 52,
    Notdir = 54,
    Notempty = 55,
    Notsup = 58,
    Perm = 63,
    Rofs = 69,
    Spipe = 70,
    Xdev = 75,
}
