package main

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/vault/sdk/physical"
	bolt "go.etcd.io/bbolt"
)

// boltStorage stores Vault's entries, which arrive encrypted, in one file. A put is
// on disk when it returns, so kill -9 loses no data and leaves no partial entry.
// Vault's own file backend may leave a stray entry that prevents its next start.
type boltStorage struct {
	db *bolt.DB
}

var _ physical.Backend = (*boltStorage)(nil)

// entriesBucket returns the name of the only bucket.
func entriesBucket() []byte { return []byte("entries") }

// openBolt opens or creates a file. It rejects a second process on the same file.
func openBolt(file string) (*boltStorage, error) {
	db, err := bolt.Open(file, 0o600, &bolt.Options{Timeout: time.Second})
	if err != nil {
		return nil, fmt.Errorf("opening the storage %s: %w (is another Vault running on it?)", file, err)
	}
	err = db.Update(func(tx *bolt.Tx) error {
		_, err := tx.CreateBucketIfNotExists(entriesBucket())
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("preparing the storage %s: %w", file, err)
	}
	return &boltStorage{db: db}, nil
}

// Close waits for running transactions and releases the file.
func (s *boltStorage) Close() error { return s.db.Close() }

// Put stores an entry.
func (s *boltStorage) Put(_ context.Context, entry *physical.Entry) error {
	return s.db.Update(func(tx *bolt.Tx) error {
		return tx.Bucket(entriesBucket()).Put([]byte(entry.Key), entry.Value)
	})
}

// Get returns nil for a missing key.
func (s *boltStorage) Get(_ context.Context, key string) (*physical.Entry, error) {
	var entry *physical.Entry
	err := s.db.View(func(tx *bolt.Tx) error {
		if value := tx.Bucket(entriesBucket()).Get([]byte(key)); value != nil {
			entry = &physical.Entry{Key: key, Value: bytes.Clone(value)}
		}
		return nil
	})
	return entry, err
}

// Delete removes a key. It succeeds if the key does not exist.
func (s *boltStorage) Delete(_ context.Context, key string) error {
	return s.db.Update(func(tx *bolt.Tx) error {
		return tx.Bucket(entriesBucket()).Delete([]byte(key))
	})
}

// List returns the entries directly under prefix; folders end with a slash.
func (s *boltStorage) List(_ context.Context, prefix string) ([]string, error) {
	var names []string
	err := s.db.View(func(tx *bolt.Tx) error {
		cursor := tx.Bucket(entriesBucket()).Cursor()
		for key, _ := cursor.Seek([]byte(prefix)); key != nil && bytes.HasPrefix(key, []byte(prefix)); key, _ = cursor.Next() {
			name := string(key[len(prefix):])
			if slash := strings.Index(name, "/"); slash >= 0 {
				name = name[:slash+1]
			}
			names = append(names, name)
		}
		return nil
	})
	slices.Sort(names)
	return slices.Compact(names), err
}
