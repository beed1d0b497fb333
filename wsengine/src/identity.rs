//! Only Orders that are signed with the controller's Ed25519 key are carried out. The signature covers the bytes of the
//! message as they were sent, so no canonical form is needed, and travels in a header.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use ring::rand::SystemRandom;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use slackwater_node::files::{FileError, text};

use crate::error::{Error, Result};

/// The header of an Order that carries its signature, in base64.
pub const HEADER: &str = "Slackwater-Signature";
/// The bytes before the 32 bytes of an Ed25519 key in a PEM file (RFC 8410).
const PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// Why a signature is not accepted.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[allow(missing_docs)] // The messages are the documentation.
pub enum SignatureError {
    #[error("it is not signed")]
    Missing,
    #[error("its signature is no base64")]
    Encoding,
    #[error("it is not signed by the controller")]
    NotControllers,
}

/// The controller's public key.
pub struct Identity(UnparsedPublicKey<Vec<u8>>);

impl Identity {
    /// Reads a PEM file as `openssl pkey -pubout` writes it.
    ///
    /// # Errors
    /// A file that is no such key, or that others than its owner may write.
    pub fn load(path: &Path) -> Result<Identity> {
        let unusable = |fault: String| Error::Unavailable(format!("{}: {fault}", path.display()));
        let metadata = std::fs::metadata(path).map_err(|error| FileError::new(path, "cannot be read", &error))?;
        let mode = metadata.mode();
        if mode & 0o022 != 0 {
            return Err(unusable(format!("others than its owner may write it (mode {:o})", mode & 0o777)));
        }
        let no_key = || unusable("no Ed25519 public key in PEM (`openssl pkey -in KEY -pubout`)".to_owned());
        Identity::parse(&text(path)?).ok_or_else(no_key)
    }

    /// A key with which no Order is signed.
    pub fn nobody() -> Identity {
        Identity(UnparsedPublicKey::new(&ED25519, Vec::new()))
    }

    /// A key that lives as long as this process, for an Order from the command line, which is checked like every other
    /// Order. Returns the signature of `payload` with it.
    ///
    /// # Errors
    /// When the system gives no random numbers.
    pub fn of_this_process(payload: &[u8]) -> Result<(Identity, String)> {
        let no_key = |error: &dyn std::fmt::Display| Error::Process(format!("no key can be made: {error}"));
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(|error| no_key(&error))?;
        let pair = Ed25519KeyPair::from_pkcs8(document.as_ref()).map_err(|error| no_key(&error))?;
        let identity = Identity(UnparsedPublicKey::new(&ED25519, pair.public_key().as_ref().to_vec()));
        Ok((identity, BASE64_STANDARD.encode(pair.sign(payload))))
    }

    fn parse(text: &str) -> Option<Identity> {
        let body = text.split_once("-----BEGIN PUBLIC KEY-----")?.1.split_once("-----END PUBLIC KEY-----")?.0;
        let body: String = body.split_whitespace().collect();
        let key = BASE64_STANDARD.decode(body).ok()?;
        let key = key.strip_prefix(PREFIX.as_slice()).filter(|key| key.len() == 32)?;
        Some(Identity(UnparsedPublicKey::new(&ED25519, key.to_vec())))
    }

    /// Checks that `signature` (base64) is the controller's signature of these bytes.
    ///
    /// # Errors
    /// Why it is not accepted.
    pub fn verify(&self, payload: &[u8], signature: Option<&str>) -> Result<(), SignatureError> {
        let signature = signature.ok_or(SignatureError::Missing)?;
        let signature = BASE64_STANDARD.decode(signature).map_err(|_| SignatureError::Encoding)?;
        self.0.verify(payload, &signature).map_err(|_| SignatureError::NotControllers)
    }
}

#[cfg(test)]
pub(crate) mod fixture {
    //! A controller's key for tests.

    use base64::Engine;
    use base64::prelude::BASE64_STANDARD;
    use ring::signature::{Ed25519KeyPair, KeyPair};

    use super::{Identity, PREFIX};

    pub(crate) struct Controller(Ed25519KeyPair);

    impl Controller {
        pub(crate) fn new(seed: u8) -> Controller {
            Controller(Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).expect("a key"))
        }

        pub(crate) fn pem(&self) -> String {
            let key = [PREFIX.as_slice(), self.0.public_key().as_ref()].concat();
            format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n", BASE64_STANDARD.encode(key))
        }

        pub(crate) fn identity(&self) -> Identity {
            Identity::parse(&self.pem()).expect("a key")
        }

        pub(crate) fn sign(&self, payload: &[u8]) -> String {
            BASE64_STANDARD.encode(self.0.sign(payload))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::fixture::Controller;
    use super::*;

    #[test]
    fn only_the_controllers_signature_of_these_bytes_counts() {
        let (controller, other) = (Controller::new(1), Controller::new(2));
        let identity = controller.identity();
        assert_eq!(identity.verify(b"order", Some(&controller.sign(b"order"))), Ok(()));
        assert_eq!(identity.verify(b"order", None), Err(SignatureError::Missing));
        assert_eq!(identity.verify(b"order", Some("%")), Err(SignatureError::Encoding));
        let wrong = Err(SignatureError::NotControllers);
        assert_eq!(identity.verify(b"Order", Some(&controller.sign(b"order"))), wrong);
        assert_eq!(identity.verify(b"order", Some(&other.sign(b"order"))), wrong);
        assert_eq!(identity.verify(b"order", Some("")), wrong);
    }

    #[test]
    fn a_file_that_is_no_key_or_that_others_may_write_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("orders.pub");
        let load = || Identity::load(&path).err().map_or(String::new(), |error| error.to_string());
        assert!(load().ends_with("cannot be read: it is not there"));
        std::fs::write(&path, "hello").expect("the file is written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("a mode");
        assert!(load().contains("no Ed25519 public key in PEM"));
        std::fs::write(&path, Controller::new(1).pem()).expect("the file is written");
        assert_eq!(load(), "");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o664)).expect("a mode");
        assert!(load().ends_with("others than its owner may write it (mode 664)"));
    }
}
