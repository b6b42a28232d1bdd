//! Details set on a status and read from it.

use crate::codec::{DecodeError, MessageCodec};
use crate::message::Message;
use crate::shared::{List, String};
use crate::status::Status;
use crate::well_known::Any;

use super::RetryInfo;

impl Status {
    /// The status with one more detail for programs, after those that it has: one of
    /// [`error_details`](crate::error_details), or any other message.
    ///
    /// A detail that cannot be encoded (it nests too deep) is left out. A status whose details were set as bytes of
    /// another form by [`Status::with_details`] loses those. All details, the message and the trailing metadata of a status
    /// together take 16 KiB at most.
    #[must_use]
    pub fn with_detail<T: Message + MessageCodec>(self, detail: &T) -> Status {
        let Ok(detail) = Any::pack(detail) else {
            return self;
        };
        let mut details = self.details_list().unwrap_or_default();
        details.push(detail);
        let status = super::Status {
            code: self.code().number() as i32,
            message: String::from(self.message()),
            details,
        };
        match status.encode() {
            Ok(bytes) => self.with_details_replaced(bytes),
            Err(_) => self,
        }
    }

    /// The first detail of a type, if there is one.
    #[must_use]
    pub fn detail<T: Message + MessageCodec>(&self) -> Option<T> {
        let details = self.details_list().ok()?;
        details
            .iter()
            .find_map(|detail| detail.unpack::<T>().ok().flatten())
    }

    /// All details, each with the name of its type.
    ///
    /// # Errors
    /// If the details are not of gRPC's form.
    pub fn details_list(&self) -> Result<List<Any>, DecodeError> {
        super::Status::decode(self.details()).map(|status| status.details)
    }

    /// How long to wait at least before trying again, if the status says so ([`RetryInfo`]).
    #[must_use]
    pub fn retry_delay(&self) -> Option<std::time::Duration> {
        let delay = self.detail::<RetryInfo>()?.retry_delay;
        delay.as_deref().and_then(|delay| delay.try_into().ok())
    }
}
