//! What a driver's error says about a conditional write: never begun, unknown, or refused.
//!
//! A plain table of every error of the driver. Two facts make it longer than one would like: a timeout of the Paxos
//! rounds leaves the write undecided (it may still be applied later), and an `Unavailable` of the learn phase comes after
//! the write was decided.

use scylla::errors::{ConnectionError, ConnectionPoolError, ConnectionSetupRequestErrorKind};
use scylla::errors::{
    DbError, ExecutionError, MetadataError, NewSessionError, RequestAttemptError,
};

/// What is known of a statement that ended with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Nothing was begun: issue it again.
    NotStarted,
    /// It may have been applied, or may still be: issue the same statement with the same token again, and look.
    Unknown,
    /// Rejected; it will be rejected again.
    Refused,
}

/// Sorts an error of a conditional statement (and of a read, for which unknown only means "again").
pub(super) fn of(error: &ExecutionError) -> Fault {
    match error {
        ExecutionError::LastAttemptError(error) => of_attempt(error),
        ExecutionError::EmptyPlan
        | ExecutionError::PrepareError(_)
        | ExecutionError::ConnectionPoolError(_) => Fault::NotStarted,
        ExecutionError::BadQuery(_) => Fault::Refused,
        ExecutionError::RequestTimeout(_)
        | ExecutionError::UseKeyspaceError(_)
        | ExecutionError::SchemaAgreementError(_)
        | ExecutionError::MetadataError(_)
        | _ => Fault::Unknown,
    }
}

/// Why a session can not be had however long one tries; none: trying again may help.
pub(super) fn refusal(error: &NewSessionError) -> Option<String> {
    let setup = match error {
        NewSessionError::MetadataError(MetadataError::ConnectionPoolError(
            ConnectionPoolError::Broken {
                last_connection_error: ConnectionError::ConnectionSetupRequestError(setup),
                ..
            },
        )) => &setup.error,
        NewSessionError::IllegalConfig(_) | NewSessionError::EmptyKnownNodesList => {
            return Some(error.to_string());
        }
        NewSessionError::FailedToResolveAnyHostname(_)
        | NewSessionError::MetadataError(_)
        | NewSessionError::UseKeyspaceError(_)
        | _ => return None,
    };
    if matches!(
        setup,
        ConnectionSetupRequestErrorKind::MissingAuthentication
    ) {
        return Some("the server asks for a login: set `user` and `password`".to_owned());
    }
    if let ConnectionSetupRequestErrorKind::AuthFinishError(cause)
    | ConnectionSetupRequestErrorKind::StartAuthSessionError(cause) = setup
    {
        return Some(cause.clone());
    }
    // Cassandra answers the same way when its own tables of roles have no quorum.
    if let ConnectionSetupRequestErrorKind::DbError(DbError::AuthenticationError, cause) = setup
        && !cause.starts_with("Unable to perform authentication")
    {
        return Some(format!("login refused: {cause}"));
    }
    None
}

fn of_attempt(error: &RequestAttemptError) -> Fault {
    match error {
        RequestAttemptError::DbError(error, _) => of_answer(error),
        RequestAttemptError::UnableToAllocStreamId => Fault::NotStarted,
        // Never sent: our own values or a statement whose id moved under us.
        RequestAttemptError::SerializationError(_)
        | RequestAttemptError::CqlRequestSerialization(_)
        | RequestAttemptError::RepreparedIdChanged { .. }
        | RequestAttemptError::RepreparedIdMissingInBatch => Fault::Refused,
        RequestAttemptError::BrokenConnectionError(_)
        | RequestAttemptError::BodyExtensionsParseError(_)
        | RequestAttemptError::CqlResultParseError(_)
        | RequestAttemptError::CqlErrorParseError(_)
        | RequestAttemptError::UnexpectedResponse(_)
        | RequestAttemptError::NonfinishedPagingState
        | _ => Fault::Unknown,
    }
}

fn of_answer(error: &DbError) -> Fault {
    match error {
        // The Paxos phase found too few replicas before it began. With any other level it was the learn phase, after the
        // decision.
        DbError::Unavailable { consistency, .. } if consistency.is_serial() => Fault::NotStarted,
        DbError::IsBootstrapping | DbError::Unprepared { .. } => Fault::NotStarted,
        DbError::RateLimitReached {
            rejected_by_coordinator: true,
            ..
        } => Fault::NotStarted,
        DbError::SyntaxError
        | DbError::Invalid
        | DbError::AlreadyExists { .. }
        | DbError::FunctionFailure { .. }
        | DbError::AuthenticationError
        | DbError::Unauthorized
        | DbError::ConfigError
        | DbError::ProtocolError => Fault::Refused,
        DbError::Unavailable { .. }
        | DbError::RateLimitReached { .. }
        | DbError::Overloaded
        | DbError::TruncateError
        | DbError::ReadTimeout { .. }
        | DbError::WriteTimeout { .. }
        | DbError::ReadFailure { .. }
        | DbError::WriteFailure { .. }
        | DbError::ServerError
        | DbError::Other(_)
        | _ => Fault::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::{Fault, of};
    use scylla::errors::{BadQuery, DbError, ExecutionError, OperationType, RequestAttemptError};
    use scylla::errors::{ConnectionPoolError, WriteType};
    use scylla::statement::Consistency;
    use std::time::Duration;

    fn answer(error: DbError) -> Fault {
        of(&ExecutionError::LastAttemptError(
            RequestAttemptError::DbError(error, String::new()),
        ))
    }

    fn write_timeout(consistency: Consistency, write_type: WriteType) -> DbError {
        DbError::WriteTimeout {
            consistency,
            received: 1,
            required: 2,
            write_type,
        }
    }

    #[test]
    fn what_may_have_been_applied_is_unknown() {
        for error in [
            write_timeout(Consistency::LocalSerial, WriteType::Cas),
            write_timeout(Consistency::Serial, WriteType::Cas),
            write_timeout(Consistency::LocalQuorum, WriteType::Simple),
            DbError::WriteFailure {
                consistency: Consistency::LocalSerial,
                received: 1,
                required: 2,
                numfailures: 1,
                write_type: WriteType::Cas,
            },
            DbError::ReadTimeout {
                consistency: Consistency::LocalSerial,
                received: 1,
                required: 2,
                data_present: false,
            },
            // The learn phase: decided already.
            DbError::Unavailable {
                consistency: Consistency::LocalQuorum,
                required: 2,
                alive: 1,
            },
            DbError::RateLimitReached {
                op_type: OperationType::Write,
                rejected_by_coordinator: false,
            },
            DbError::Overloaded,
            DbError::ServerError,
            // CAS_WRITE_UNKNOWN of a later protocol.
            DbError::Other(0x1700),
        ] {
            assert_eq!(answer(error.clone()), Fault::Unknown, "{error:?}");
        }
        let timeout = ExecutionError::RequestTimeout(Duration::from_secs(6));
        assert_eq!(of(&timeout), Fault::Unknown);
    }

    #[test]
    fn what_was_never_begun_is_not_started() {
        for consistency in [Consistency::Serial, Consistency::LocalSerial] {
            let error = DbError::Unavailable {
                consistency,
                required: 2,
                alive: 1,
            };
            assert_eq!(answer(error), Fault::NotStarted);
        }
        assert_eq!(answer(DbError::IsBootstrapping), Fault::NotStarted);
        assert_eq!(of(&ExecutionError::EmptyPlan), Fault::NotStarted);
        let pool = ExecutionError::ConnectionPoolError(ConnectionPoolError::Initializing);
        assert_eq!(of(&pool), Fault::NotStarted);
        let stream = ExecutionError::LastAttemptError(RequestAttemptError::UnableToAllocStreamId);
        assert_eq!(of(&stream), Fault::NotStarted);
    }

    #[test]
    fn what_will_never_work_is_refused() {
        for error in [
            DbError::SyntaxError,
            DbError::Invalid,
            DbError::Unauthorized,
            DbError::AuthenticationError,
            DbError::ProtocolError,
        ] {
            assert_eq!(answer(error.clone()), Fault::Refused, "{error:?}");
        }
        assert_eq!(
            of(&ExecutionError::BadQuery(BadQuery::ValuesTooLongForKey(
                1, 2
            ))),
            Fault::Refused
        );
    }
}
