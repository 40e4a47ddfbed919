package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/gatehouse/gatehouse/clients/go/publish"
)

// follower publishes a table. The version of an object is a position in Postgres's log (LSN): of the commit, or of the
// snapshot. Positions grow with each commit, so a repeated change is stale: the change was published before.
type follower struct {
	database, table, column, prefix, name string

	publisher *publish.Publisher
	relations map[uint32]*pglogrepl.RelationMessage
	changes   map[string][]byte // of the current transaction: the last body of each key, nil for none
	truncated bool              // the current transaction has emptied the table
	open      bool              // a transaction has begun
	applied   pglogrepl.LSN     // all changes before were published
}

// follow publishes the whole table once, unless the slot exists already, and then each change, until an error.
func (f *follower) follow(ctx context.Context) error {
	config, err := pgconn.ParseConfig(f.database)
	if err != nil {
		return err
	}
	config.RuntimeParams["replication"] = "database"
	conn, err := pgconn.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer hangUp(conn)
	slots, err := conn.Exec(ctx, "SELECT 1 FROM pg_replication_slots WHERE slot_name = "+quoteSQL(f.name)).ReadAll()
	if err != nil {
		return err
	}
	if len(slots[0].Rows) == 0 {
		if err := f.publishSnapshot(ctx, conn); err != nil {
			return fmt.Errorf("publish the table: %w", err)
		}
	}
	f.relations, f.applied = map[uint32]*pglogrepl.RelationMessage{}, 0
	f.resetTransaction(false)
	err = pglogrepl.StartReplication(ctx, conn, f.name, 0, pglogrepl.StartReplicationOptions{
		PluginArgs: []string{"proto_version '1'", "publication_names " + quoteSQL(`"`+f.name+`"`)}})
	if err != nil {
		return err
	}
	return f.streamChanges(ctx, conn)
}

// hangUp closes a connection on which Postgres may still be sending.
func hangUp(conn *pgconn.PgConn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx)
}

// publishSnapshot publishes the whole table, and creates the slot at the same position. The slot exists only when all
// rows are published: until then a temporary slot exists.
func (f *follower) publishSnapshot(ctx context.Context, conn *pgconn.PgConn) error {
	slot, err := pglogrepl.CreateReplicationSlot(ctx, conn, f.name+"_snapshot", "pgoutput",
		pglogrepl.CreateReplicationSlotOptions{Temporary: true, SnapshotAction: "EXPORT_SNAPSHOT"})
	if err != nil {
		return err
	}
	at, err := pglogrepl.ParseLSN(slot.ConsistentPoint)
	if err != nil {
		return err
	}
	sql, err := pgconn.Connect(ctx, f.database)
	if err != nil {
		return err
	}
	defer hangUp(sql)
	rows := sql.Exec(ctx, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET TRANSACTION SNAPSHOT "+
		quoteSQL(slot.SnapshotName)+"; SELECT * FROM "+pgx.Identifier(strings.Split(f.table, ".")).Sanitize()+"; COMMIT")
	defer rows.Close()
	all, page := map[string]bool{}, map[string][]byte{}
	for rows.NextResult() {
		for r := rows.ResultReader(); r.NextRow(); {
			var columns []column
			for i, field := range r.FieldDescriptions() {
				columns = append(columns, column{field.Name, field.DataTypeOID, r.Values()[i]})
			}
			key, body := f.keyAndBody(columns)
			all[key], page[key] = true, body
			if len(page) == 512 {
				if err := f.publishBodies(ctx, page, at); err != nil {
					return err
				}
				clear(page)
			}
		}
	}
	if err := rows.Close(); err != nil {
		return err
	}
	if err := f.publishBodies(ctx, page, at); err != nil {
		return err
	}
	if err := f.deleteOthers(ctx, all, at); err != nil { // of an earlier snapshot, or of a dropped slot
		return err
	}
	return sql.Exec(ctx, fmt.Sprintf("SELECT pg_copy_logical_replication_slot(%s, %s, false)",
		quoteSQL(f.name+"_snapshot"), quoteSQL(f.name))).Close()
}

// streamChanges publishes the changes of each transaction after the commit, and then confirms the commit to Postgres.
func (f *follower) streamChanges(ctx context.Context, conn *pgconn.PgConn) error {
	const confirmEvery = 5 * time.Second
	for {
		received, cancel := context.WithTimeout(ctx, confirmEvery)
		message, err := conn.ReceiveMessage(received)
		cancel()
		switch m := message.(type) {
		case *pgproto3.ErrorResponse:
			return errors.New(m.Message)
		case *pgproto3.CopyData:
			if err := f.handleCopyData(ctx, m.Data); err != nil {
				return err
			}
		default:
			if err != nil && !(pgconn.Timeout(err) && ctx.Err() == nil) {
				return err
			}
		}
		if f.open && message != nil {
			continue
		}
		err = pglogrepl.SendStandbyStatusUpdate(ctx, conn, pglogrepl.StandbyStatusUpdate{WALWritePosition: f.applied})
		if err != nil {
			return err
		}
	}
}

// handleCopyData handles a message of the stream.
func (f *follower) handleCopyData(ctx context.Context, data []byte) error {
	switch data[0] {
	case pglogrepl.PrimaryKeepaliveMessageByteID:
		keepalive, err := pglogrepl.ParsePrimaryKeepaliveMessage(data[1:])
		if err == nil && !f.open {
			f.applied = max(f.applied, keepalive.ServerWALEnd) // all before was sent, and so published
		}
		return err
	case pglogrepl.XLogDataByteID:
		logged, err := pglogrepl.ParseXLogData(data[1:])
		if err != nil {
			return err
		}
		message, err := pglogrepl.Parse(logged.WALData)
		if err != nil {
			return err
		}
		return f.handleMessage(ctx, message)
	}
	return nil
}

func (f *follower) resetTransaction(open bool) {
	f.changes, f.truncated, f.open = map[string][]byte{}, false, open
}

// handleMessage handles a message of a transaction.
func (f *follower) handleMessage(ctx context.Context, message pglogrepl.Message) error {
	switch m := message.(type) {
	case *pglogrepl.RelationMessage:
		if m.ReplicaIdentity != 'f' {
			return fmt.Errorf("table %s: run ALTER TABLE … REPLICA IDENTITY FULL", m.RelationName)
		}
		f.relations[m.RelationID] = m
	case *pglogrepl.BeginMessage:
		f.resetTransaction(true)
	case *pglogrepl.InsertMessage:
		f.recordChange(m.RelationID, nil, m.Tuple)
	case *pglogrepl.UpdateMessage:
		f.recordChange(m.RelationID, m.OldTuple, m.NewTuple)
	case *pglogrepl.DeleteMessage:
		f.recordChange(m.RelationID, m.OldTuple, nil)
	case *pglogrepl.TruncateMessage:
		f.resetTransaction(true)
		f.truncated = true
	case *pglogrepl.CommitMessage:
		at := m.TransactionEndLSN
		if f.truncated {
			kept := map[string]bool{}
			for key := range f.changes {
				kept[key] = true
			}
			if err := f.deleteOthers(ctx, kept, at); err != nil {
				return err
			}
		}
		if err := f.publishBodies(ctx, f.changes, at); err != nil {
			return err
		}
		f.applied = at
		f.resetTransaction(false)
	}
	return nil
}

// recordChange records the change of a row.
func (f *follower) recordChange(relation uint32, before, after *pglogrepl.TupleData) {
	var old []column
	if before != nil {
		old = f.readColumns(relation, before, nil)
		key, body := f.keyAndBody(old)
		// With a deferred constraint of the key, the key may already belong to another row.
		if now, changed := f.changes[key]; !changed || bytes.Equal(now, body) {
			f.changes[key] = nil
		}
	}
	if after != nil {
		key, body := f.keyAndBody(f.readColumns(relation, after, old))
		f.changes[key] = body
	}
}

// readColumns returns the columns of a row. A large value that an update left unchanged is only in the row before.
func (f *follower) readColumns(relation uint32, row *pglogrepl.TupleData, before []column) []column {
	var columns []column
	for i, value := range row.Columns {
		of := f.relations[relation].Columns[i]
		c := column{of.Name, of.DataType, value.Data}
		switch {
		case value.DataType == pglogrepl.TupleDataTypeNull:
			c.text = nil
		case value.DataType == pglogrepl.TupleDataTypeToast && before != nil:
			c.text = before[i].text
		case c.text == nil:
			c.text = []byte{} // an empty text
		}
		columns = append(columns, c)
	}
	return columns
}

// publishBodies publishes bodies by key, or deletes objects with a nil body, as of a position. publishBodies may be
// repeated after an error.
func (f *follower) publishBodies(ctx context.Context, bodies map[string][]byte, at pglogrepl.LSN) error {
	var objects []publish.Object
	for _, key := range slices.Sorted(maps.Keys(bodies)) {
		if bodies[key] == nil {
			if err := f.deleteObject(ctx, key, at); err != nil {
				return err
			}
			continue
		}
		objects = append(objects, publish.Object{Key: key, Body: bodies[key], ContentType: "application/json",
			Version: uint64(at)})
	}
	for i, r := range f.publisher.PutAll(ctx, objects) {
		switch {
		case errors.Is(r.Err, publish.ErrInvalid): // too large, for example
			log.Print(r.Err)
			if err := f.deleteObject(ctx, objects[i].Key, at); err != nil {
				return err
			}
		case r.Err != nil && !errors.Is(r.Err, publish.ErrStale):
			return r.Err
		}
	}
	return nil
}

func (f *follower) deleteObject(ctx context.Context, key string, at pglogrepl.LSN) error {
	_, err := f.publisher.Delete(ctx, key, uint64(at))
	if errors.Is(err, publish.ErrStale) || errors.Is(err, publish.ErrInvalid) { // already deleted, or can't exist
		return nil
	}
	return err
}

// deleteOthers deletes all objects but those with the keys of kept, as of a position.
func (f *follower) deleteOthers(ctx context.Context, kept map[string]bool, at pglogrepl.LSN) error {
	for entry, err := range f.publisher.List(ctx, f.prefix) {
		if err != nil {
			return err
		}
		if !kept[entry.Key] {
			if err := f.deleteObject(ctx, entry.Key, at); err != nil {
				return err
			}
		}
	}
	return nil
}

// keyAndBody returns key and body of a row.
func (f *follower) keyAndBody(columns []column) (key string, body []byte) {
	for _, c := range columns {
		if c.name == f.column {
			key = f.prefix + url.PathEscape(string(c.text))
		}
	}
	return key, rowJSON(columns)
}

// quoteSQL returns text as a literal of SQL.
func quoteSQL(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }
