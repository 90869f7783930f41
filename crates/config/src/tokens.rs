//! Tokens in a file, which is created if it does not exist: a server that others can reach has a token from
//! its first start on, without any preparation.

use std::{fs, io, path::Path};

use crate::secret_file;

/// The name of the token that is created.
const NAME: &str = "me";

/// Reads the file and returns `name:token,...`. In the file, pairs may also be on separate lines.
pub(super) fn from_file(path: &Path) -> io::Result<String> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => make(path)?,
        text => text?,
    };
    let list = text.lines().map(str::trim).collect::<Vec<_>>().join(",");
    if list.chars().all(|c| c == ',' || c.is_whitespace()) {
        return Err(io::Error::other("it contains no token"));
    }
    Ok(list)
}

/// Creates the file with one token.
fn make(path: &Path) -> io::Result<String> {
    let mut token = [0; 32];
    getrandom::fill(&mut token).map_err(io::Error::other)?;
    let text = format!("{NAME}:{}\n", hex::encode(token));
    if secret_file::make(path, &text)? { Ok(text) } else { fs::read_to_string(path) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_file_that_is_not_there_is_made_with_one_token_and_then_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tokens");
        let made = from_file(&path).expect("made");
        let token = made.strip_prefix("me:").expect("named").trim_end_matches(',');
        assert!(token.len() == 64 && token.bytes().all(|byte| byte.is_ascii_hexdigit()), "{token}");
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        assert_eq!(from_file(&path).expect("read"), made);
        assert_eq!(fs::read_dir(folder.path()).expect("listed").count(), 1, "nothing beside it");
        let another = from_file(&folder.path().join("another")).expect("made");
        assert_ne!(another, made);
    }

    #[test]
    fn all_who_make_it_at_once_have_the_same() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tokens");
        let all: Vec<_> = std::thread::scope(|scope| {
            let makers: Vec<_> = (0..16).map(|_| scope.spawn(|| from_file(&path))).collect();
            makers.into_iter().map(|maker| maker.join().expect("ended").expect("made")).collect()
        });
        assert!(all.iter().all(|list| *list == all[0]), "{all:?}");
    }

    #[test]
    fn pairs_stand_in_lines_or_between_commas() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tokens");
        fs::write(&path, "ann:a1\n\n  ben:b1,ben:b2 \r\n").expect("written");
        let tokens = crate::auth::Tokens::parse(&from_file(&path).expect("read")).expect("valid");
        for (token, name) in [("a1", "ann"), ("b1", "ben"), ("b2", "ben")] {
            assert_eq!(tokens.principal(token).expect("known").name(), name);
        }
    }

    #[test]
    fn a_file_without_tokens_and_a_folder_that_is_not_there_are_mistakes() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tokens");
        fs::write(&path, " \n,\n").expect("written");
        assert!(from_file(&path).is_err());
        assert!(from_file(&folder.path().join("no/such/tokens")).is_err());
        assert!(from_file(folder.path()).is_err());
    }
}
