package main
import "context"
func (r *release) buildManual(ctx context.Context) error {return nil}
