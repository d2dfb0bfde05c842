//! What an upload needs of a destination, and how an operation there can fail.

use async_trait::async_trait;
use bytes::Bytes;

/// The kinds of failures, for metrics and for what to do about them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FailureClass {
    /// No connection, or it ended.
    Unreachable,
    /// The two sides do not agree on TLS.
    Tls,
    /// Nothing moved for the idle time.
    Timeout,
    /// There are no credentials, or they are not accepted.
    Credentials,
    /// The file with the credentials cannot be read or used.
    CredentialsFile,
    /// The identity may not do it.
    Denied,
    /// The service refuses for another reason, which it names.
    Refused,
    /// There is no such bucket or folder.
    NotFound,
    /// The settings have no such destination any more.
    NoDestination,
    /// Too many requests.
    Throttled,
    /// The service failed.
    Server,
    /// What is there is not what was sent.
    Damaged,
    /// The destination is full.
    NoSpace,
    /// Another session has the name there.
    Taken,
    /// The session there was finished without it.
    TooLate,
    /// The session's own file cannot be read.
    Local,
    /// Anything else.
    Other,
}

impl FailureClass {
    /// All classes.
    pub const ALL: [Self; 17] = [
        Self::Unreachable,
        Self::Tls,
        Self::Timeout,
        Self::Credentials,
        Self::CredentialsFile,
        Self::Denied,
        Self::Refused,
        Self::NotFound,
        Self::NoDestination,
        Self::Throttled,
        Self::Server,
        Self::Damaged,
        Self::NoSpace,
        Self::Taken,
        Self::TooLate,
        Self::Local,
        Self::Other,
    ];

    /// The class as metrics, messages and the state have it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::Tls => "tls",
            Self::Timeout => "timeout",
            Self::Credentials => "credentials",
            Self::CredentialsFile => "credentials_file",
            Self::Denied => "denied",
            Self::Refused => "refused",
            Self::NotFound => "not_found",
            Self::NoDestination => "no_destination",
            Self::Throttled => "throttled",
            Self::Server => "server",
            Self::Damaged => "damaged",
            Self::NoSpace => "no_space",
            Self::Taken => "taken",
            Self::TooLate => "too_late",
            Self::Local => "local",
            Self::Other => "other",
        }
    }

    /// The class of this name; of an unknown one [`FailureClass::Other`].
    pub fn named(name: &str) -> Self {
        Self::ALL.into_iter().find(|class| class.as_str() == name).unwrap_or(Self::Other)
    }

    /// Whether it is about one session, and says nothing of the destination.
    pub fn is_of_the_session(self) -> bool {
        matches!(self, Self::Damaged | Self::Taken | Self::TooLate | Self::Local)
    }

    /// Whether another attempt would fail too, unless somebody does something about it.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Damaged | Self::Taken | Self::TooLate)
    }
}

/// Why an operation failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    /// There is an object of this name already, or another generation of it.
    #[error("there is an object of this name already")]
    Exists,
    /// The parts that were sent are gone: the object was completed, or they expired.
    #[error("the parts that were sent are gone")]
    PartsGone,
    /// Anything else.
    #[error("{message}")]
    Failed {
        /// Its kind.
        class: FailureClass,
        /// What failed, in one line.
        message: String,
    },
}

impl TransferError {
    pub(crate) fn new(class: FailureClass, message: impl ToString) -> Self {
        Self::Failed { class, message: message.to_string() }
    }

    pub(crate) fn other(message: impl ToString) -> Self {
        Self::new(FailureClass::Other, message)
    }

    /// Its kind.
    pub fn class(&self) -> FailureClass {
        match self {
            Self::Exists | Self::PartsGone => FailureClass::Other,
            Self::Failed { class, .. } => *class,
        }
    }
}

/// An object as its destination describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectFacts {
    /// Bytes.
    pub size: u64,
    /// CRC32C of its content, if the destination says so.
    pub crc32c: Option<u32>,
    /// Its generation; empty if the destination has none.
    pub generation: String,
    /// Its ETag; empty if the destination has none.
    pub etag: String,
}

/// A part of a large object.
#[derive(Debug, Clone)]
pub struct PartData {
    /// From 0.
    pub index: u32,
    /// Where it begins in the object.
    pub offset: u64,
    /// Its content.
    pub data: Bytes,
}

/// A destination. An object is named by its path below the destination's URL, such as
/// `plugins/profile/<session>/<file>`.
///
/// Must never make an object visible before it is complete.
#[async_trait]
pub trait UploadTarget: Send + Sync + 'static {
    /// Writes a small object. With `replaces` it replaces that generation, else it must be new.
    ///
    /// # Errors
    /// [`TransferError::Exists`] if it is there, or another generation of it. After any other error it may be there too.
    async fn put(&self, path: &str, data: Bytes, replaces: Option<&str>) -> Result<(), TransferError>;

    /// Begins a large object. Returns the id of its parts.
    async fn begin_parts(&self, path: &str) -> Result<String, TransferError>;

    /// Sends one part. Returns what [`UploadTarget::complete`] needs of it.
    ///
    /// # Errors
    /// [`TransferError::PartsGone`] if the id is not known any more.
    async fn put_part(&self, path: &str, id: &str, part: PartData) -> Result<String, TransferError>;

    /// Makes a large object of its parts, in their order. Replaces an object of this name.
    ///
    /// # Errors
    /// [`TransferError::PartsGone`] if the id is not known any more, such as after it was completed.
    async fn complete(&self, path: &str, id: &str, parts: Vec<String>) -> Result<(), TransferError>;

    /// Removes the parts of an object that will not be completed.
    async fn abort(&self, path: &str, id: &str) -> Result<(), TransferError>;

    /// Describes an object; `None` if there is none.
    async fn head(&self, path: &str) -> Result<Option<ObjectFacts>, TransferError>;

    /// The length of an object, which may cost less than all that [`UploadTarget::head`] says; `None` if there is none.
    async fn size(&self, path: &str) -> Result<Option<u64>, TransferError> {
        Ok(self.head(path).await?.map(|object| object.size))
    }

    /// The content of a small object; `None` if there is none.
    async fn get(&self, path: &str) -> Result<Option<Bytes>, TransferError>;

    /// Removes an object.
    async fn delete(&self, path: &str) -> Result<(), TransferError>;

    /// Removes the empty folders that a check has made, where a destination has folders.
    async fn remove_empty_folders(&self) {}

    /// Who the destination takes the agent for, such as the address of a service account.
    async fn identity(&self) -> String;
}
