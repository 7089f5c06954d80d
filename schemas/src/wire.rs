//! How single values stand in the Avro datum, where serde's own choice would differ from the `.avsc` files.

/// `bytes`, taken over from the decoder's buffer without another copy.
pub(crate) mod bytes {
    use bytes::Bytes;
    use serde::{Deserialize, Deserializer, Serializer};
    use serde_bytes::ByteBuf;

    pub(crate) fn serialize<S: Serializer>(value: &Bytes, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(value)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Bytes, D::Error> {
        Ok(Bytes::from(ByteBuf::deserialize(from)?.into_vec()))
    }
}

/// `uuid`: a hyphenated string. The uuid crate would write 16 bytes.
pub(crate) mod uuid {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use uuid::Uuid;

    pub(crate) fn serialize<S: Serializer>(value: &Uuid, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(value.hyphenated().encode_lower(&mut Uuid::encode_buffer()))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Uuid, D::Error> {
        Uuid::parse_str(&String::deserialize(from)?).map_err(D::Error::custom)
    }
}

/// `["null", uuid]`.
pub(crate) mod optional_uuid {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use uuid::Uuid;

    #[derive(Deserialize)]
    #[serde(transparent)]
    struct Owned(#[serde(with = "super::uuid")] Uuid);

    #[derive(Serialize)]
    #[serde(transparent)]
    struct Borrowed<'a>(#[serde(with = "super::uuid")] &'a Uuid);

    #[expect(clippy::ref_option, reason = "serde calls it with this type")]
    pub(crate) fn serialize<S: Serializer>(value: &Option<Uuid>, to: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(uuid) => to.serialize_some(&Borrowed(uuid)),
            None => to.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Uuid>, D::Error> {
        Ok(Option::<Owned>::deserialize(from)?.map(|Owned(uuid)| uuid))
    }
}
