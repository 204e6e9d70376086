package maastest

import (
	"bytes"
	"context"
	"net/http"
	"slices"
	"time"
)

// Fault is how the server misbehaves.
type Fault string

// The faults. LostRequest closes the connection and does nothing. LostReply does what was asked
// and closes it; Late does it after Delays.Late. Slow does it and responds when the client has
// left. Garbage, Huge and WrongTypes do it and respond with HTML, more than 8 MiB, and JSON of
// other types. Unfiltered ignores the parameters of a list. The others only respond: Echo with the authorization header of the request.
const (
	LostRequest Fault = "lost_request"
	LostReply   Fault = "lost_reply"
	Late        Fault = "late"
	Slow        Fault = "slow"
	Capacity    Fault = "capacity"
	Auth        Fault = "auth"
	Forbidden   Fault = "forbidden"
	Unavailable Fault = "unavailable"
	Internal    Fault = "internal"
	BadGateway  Fault = "bad_gateway"
	Garbage     Fault = "garbage"
	Huge        Fault = "huge"
	WrongTypes  Fault = "wrong_types"
	Redirect    Fault = "redirect"
	Echo        Fault = "echo"
	Unfiltered  Fault = "unfiltered"
)

// fault is a fault for the next requests of some operations.
type fault struct {
	operations []string
	fault      Fault
	left       int
}

// Inject makes the next n requests of the operations fail. The operations are the values of op,
// and read, list and devices.
func (s *Server) Inject(f Fault, n int, operations ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, &fault{operations, f, n})
}

// Clear ends the faults.
func (s *Server) Clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = nil
}

// Waiting reports whether a slow request has had its effect, and its client has not left.
func (s *Server) Waiting() bool { return s.slow.Load() > 0 }

func (s *Server) fault(op string) Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.faults {
		if f.left > 0 && slices.Contains(f.operations, op) {
			f.left--
			return f.fault
		}
	}
	return ""
}

// maxSlow bounds a slow response.
const maxSlow = time.Minute

func (s *Server) misbehave(w http.ResponseWriter, r *http.Request, op string, f Fault) {
	switch f {
	case LostRequest:
		panic(http.ErrAbortHandler) // closes the connection
	case LostReply:
		s.handle(op, r)
		panic(http.ErrAbortHandler)
	case Late:
		late := r.Clone(context.WithoutCancel(r.Context()))
		late.Form, late.PostForm = r.Form, r.PostForm
		s.running.Go(func() {
			select {
			case <-s.stop:
			case <-time.After(s.options.Delays.Late):
				s.handle(op, late)
			}
		})
		panic(http.ErrAbortHandler)
	case Slow:
		a := s.handle(op, r)
		s.slow.Add(1)
		defer s.slow.Add(-1)
		select {
		case <-r.Context().Done():
		case <-s.stop:
		case <-time.After(maxSlow):
		}
		write(w, a)
	case Garbage:
		s.handle(op, r)
		write(w, reply{http.StatusOK, "text/html", []byte("<!DOCTYPE html><title>Proxy</title>")})
	case WrongTypes:
		s.handle(op, r)
		write(w, reply{http.StatusOK, "application/json", []byte(`{"system_id": 7, "username": [], "events": "none", "status": "Ready"}`)})
	case Huge:
		s.handle(op, r)
		write(w, reply{http.StatusOK, "application/json", append([]byte(`[{"system_id": "sys1", "hostname": "`), bytes.Repeat([]byte("a"), 10<<20)...)})
	case Unfiltered:
		r.Form = nil
		write(w, s.handle(op, r))
	case Redirect:
		w.Header().Set("Location", "http://192.0.2.1/MAAS/api/2.0/machines/")
		write(w, plain(http.StatusTemporaryRedirect, ""))
	default:
		write(w, refusal(f, r))
	}
}

// refusal is a response without effect.
func refusal(f Fault, r *http.Request) reply {
	switch f {
	case Capacity:
		return plain(http.StatusConflict, "No machine available.")
	case Auth:
		return plain(http.StatusUnauthorized, "Authorization Error: Invalid API key.")
	case Forbidden:
		return plain(http.StatusForbidden, "User is not allowed access to this API.")
	case Unavailable: // NoConnectionsAvailable of APIRPCErrorsMiddleware
		return plain(http.StatusServiceUnavailable, "Unable to connect to any rack controller")
	case BadGateway:
		return reply{http.StatusBadGateway, "text/html", []byte("<html><h1>502 Bad Gateway</h1></html>")}
	case Echo:
		return plain(http.StatusBadRequest, "invalid: %s %s", r.Header.Get("Authorization"), r.PostForm.Get("user_data"))
	default:
		return plain(http.StatusInternalServerError, "deadlock detected")
	}
}
