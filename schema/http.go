package schema

// ErrorBody is the error envelope of every HTTP response that is not a success.
type ErrorBody struct {
	Error ErrorDetail `json:"error"`
}

// ErrorDetail is the content of the error envelope.
type ErrorDetail struct {
	Code          Kind   `json:"code"`
	Message       string `json:"message"`
	CorrelationID string `json:"correlation_id"`
	Reason        string `json:"reason,omitempty"`
	Next          string `json:"next,omitempty"`
}

// Body renders e as an error envelope.
func (e *Error) Body(correlationID string) ErrorBody {
	return ErrorBody{ErrorDetail{e.Kind, e.Message, correlationID, e.Reason, e.Next}}
}

// AsError is the reverse of Error.Body, for clients.
func (b ErrorBody) AsError() *Error {
	return &Error{Kind: b.Error.Code, Message: b.Error.Message, Reason: b.Error.Reason, Next: b.Error.Next}
}
