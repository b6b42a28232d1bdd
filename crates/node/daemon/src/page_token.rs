//! The token by which the page is seen at a port of this machine.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Bytes of a token: fewer can be guessed, and more belong to another file.
const TOKEN_BYTES_MIN: usize = 32;
pub(crate) const TOKEN_BYTES_MAX: usize = 1024;
/// What everybody may do with a file.
const MODE_OF_OTHERS: u32 = 0o007;

/// Whether the file's token can be used. The error says what is wrong with the file.
pub(crate) fn check_token(file: &Path) -> Result<(), String> {
    read_token(file).map(drop)
}

/// The token in a file. The error says what is wrong with it.
pub(crate) fn read_token(path: &Path) -> Result<String, String> {
    let shown = path.display();
    let unread = |error| format!("{shown} cannot be read: {error}");
    let file = File::open(path).map_err(unread)?;
    let facts = file.metadata().map_err(unread)?;
    if !facts.is_file() {
        return Err(format!("{shown} is no file"));
    }
    if facts.mode() & MODE_OF_OTHERS != 0 {
        return Err(format!(
            "{shown} is open to every user of this machine: chmod o= {shown}"
        ));
    }
    let mut text = String::new();
    let bytes_max = TOKEN_BYTES_MAX as u64 + 2;
    file.take(bytes_max).read_to_string(&mut text).map_err(unread)?;
    let token = text.trim();
    let is_printable = token.bytes().all(|byte| byte.is_ascii_graphic());
    if !(TOKEN_BYTES_MIN..=TOKEN_BYTES_MAX).contains(&token.len()) || !is_printable {
        return Err(format!(
            "{shown} has no token: one line of {TOKEN_BYTES_MIN} to {TOKEN_BYTES_MAX} printable characters, such as `openssl rand \
             -hex 32` makes"
        ));
    }
    Ok(token.to_owned())
}
