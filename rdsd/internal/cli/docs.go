package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// docsCmd writes the reference pages in docs/cli; a test keeps them current.
func (a *app) docsCmd() *cobra.Command {
	return &cobra.Command{
		Use:    "docs DIR",
		Short:  "write the reference of all commands as Markdown and manual pages",
		Hidden: true,
		Args:   needArgs("DIR", "the directory to write to"),
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := writeDocs(cmd.Root(), args[0])
			if err == nil {
				fmt.Fprintf(a.out, "wrote %d pages to %s\n", n, args[0])
			}
			return err
		},
	}
}

// writeDocs writes Markdown into dir and manual pages into dir/man1.
func writeDocs(root *cobra.Command, dir string) (int, error) {
	man := filepath.Join(dir, "man1")
	if err := os.MkdirAll(man, 0o755); err != nil {
		return 0, err
	}
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	if err := doc.GenMarkdownTree(root, dir); err != nil {
		return 0, err
	}
	// A fixed date keeps the pages the same until a command changes.
	date := time.Date(2026, time.November, 1, 0, 0, 0, 0, time.UTC)
	header := &doc.GenManHeader{Title: "RDSD", Section: "1", Source: "rdsd", Manual: "rdsd manual", Date: &date}
	if err := doc.GenManTree(root, header, man); err != nil {
		return 0, err
	}
	codes := "## Exit codes\n\n| code | name | meaning |\n|---:|---|---|\n"
	for _, e := range exitCodes {
		codes += fmt.Sprintf("| %d | %s | %s |\n", e.code, e.name, e.meaning)
	}
	if err := os.WriteFile(filepath.Join(dir, "exit-codes.md"), []byte(codes), 0o644); err != nil {
		return 0, err
	}
	pages, err := filepath.Glob(filepath.Join(dir, "*.md"))
	return len(pages), err
}
